// Memory that malloc accepts is usable: on seven chains of tiers, with host memory down to the
// minimum of a start, sizes up to the largest that malloc accepts are written, acquired by the GPU
// and read, in five orders. Tests the largest size and one other; with VMEM_TEST_EVERY_SIZE all,
// with VMEM_TEST_SEED random ones.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <span>
#include <vector>

#include "runtime/remote/daemon.hpp"
#include "runtime/runtime_fixture.hpp"
#include "visits.hpp"

namespace vmem::test {
namespace {

constexpr std::size_t kPage = 2 * kMiB;  // unit of the sizes; pages may be larger

// HBM, host memory, and the other tiers below.
struct Chain {
  const char* name;
  bool peer, remote, nvme;
  // For gtest's lists of tests.
  friend void PrintTo(const Chain& each, std::ostream* out) { *out << each.name; }
};
constexpr Chain kChains[] = {
    {"Host", false, false, false},
    {"PeerHost", true, false, false},
    {"HostNvme", false, false, true},
    {"HostRemote", false, true, false},
    {"PeerHostNvme", true, false, true},
    {"HostRemoteNvme", false, true, true},
    {"PeerHostRemoteNvme", true, true, true},
};

struct Machine {
  const char* name;
  std::uint64_t hbm_mib, host_mib;  // host 0: the minimum of a start
  const char* page;
  friend void PrintTo(const Machine& each, std::ostream* out) { *out << each.name; }
};
// If vmem chooses the page size, sizes are mixed: 8 MiB in large allocations, 2 MiB in small ones.
constexpr Machine kMachines[] = {
    {"LeastHost", 32, 0, "2MiB"},
    {"MoreHost", 32, 24, "2MiB"},
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they take ten times as long
    {"LargePages", 64, 32, "8MiB"},
    {"ChosenPages", 128, 64, "auto"},
#endif
};

using Case = std::tuple<Chain, Machine>;

// In pages, the largest first.
std::vector<std::size_t> sizes_to_use(std::size_t most) {
  std::vector<std::size_t> sizes{most};
  if (std::getenv("VMEM_TEST_EVERY_SIZE") != nullptr) {
    for (std::size_t pages = most - 1; pages > 0; --pages) sizes.push_back(pages);
  } else if (const char* const seed = std::getenv("VMEM_TEST_SEED")) {
    std::mt19937_64 random(std::strtoull(seed, nullptr, 0));
    for (int i = 0; i < 2; ++i) sizes.push_back(1 + random() % most);
  } else {
    sizes.push_back(most / 2);
  }
  return sizes;
}

// One allocation. Each page has a number at its begin and end, which each visit increments.
class Allocation {
 public:
  Allocation(std::byte* base, std::size_t pages) : base_(base), numbers_(pages, 0) {}

  std::size_t pages() const { return numbers_.size(); }
  std::byte* base() const { return base_; }
  void write(std::size_t page) {
    const std::uint64_t number = number_of(page, ++numbers_[page]);
    for (std::byte* at : ends(page)) ASSERT_OK(vmem_write(at, &number, sizeof number)) << "page " << page;
  }
  void read(std::size_t page) const {
    for (const std::byte* at : ends(page)) {
      std::uint64_t found = 0;
      ASSERT_OK(vmem_read(&found, at, sizeof found)) << "page " << page;
      ASSERT_EQ(found, number_of(page, numbers_[page])) << "page " << page;
    }
  }
  // A kernel checks and increments the numbers; `wrong` is valid once the stream is synchronized.
  void use(std::size_t page, const EmulatedGpu& gpu, CUstream stream, std::size_t& wrong) {
    const vmem_range range = range_of(base_ + page * kPage, kPage);
    ASSERT_OK(acquire(range, stream)) << "page " << page;
    const std::uint64_t before = number_of(page, numbers_[page]++);
    const auto at = ends(page);
    ASSERT_EQ(gpu.launch(stream, 0,
                         [at, before, &wrong] {
                           for (std::byte* each : at) {
                             auto* const number = reinterpret_cast<std::uint64_t*>(each);
                             wrong += *number != before;
                             *number = before + 1;
                           }
                         }),
              CUDA_SUCCESS);
    ASSERT_OK(release(range, stream));
  }

 private:
  static std::uint64_t number_of(std::size_t page, std::uint64_t count) { return std::uint64_t{page} << 32 | count; }
  std::array<std::byte*, 2> ends(std::size_t page) const {
    return {base_ + page * kPage, base_ + (page + 1) * kPage - sizeof(std::uint64_t)};
  }
  std::byte* base_;
  std::vector<std::uint64_t> numbers_;
};

class Usable : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const auto& [chain, machine] = GetParam();
    gpu_.emplace(fmt::format("devices={},hbm={}MiB,host=512MiB", chain.peer ? 2 : 1, machine.hbm_mib + 16));
    if (chain.nvme) {
      folder_ = ::testing::TempDir() + "vmem-usable-XXXXXX";
      ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    }
    if (chain.remote) {
      runtime::DaemonOptions lending;
      lending.listen = "127.0.0.1:0";
      lending.lend_bytes = machine.hbm_mib * kMiB;
      auto daemon = runtime::Daemon::start(lending);
      ASSERT_TRUE(daemon) << daemon.error().message;
      daemon_ = *std::move(daemon);
    }
    if (machine.host_mib != 0) {
      ASSERT_OK(start(machine.host_mib));
    } else {
      start_with_the_least_host_memory();
    }
    stream_ = gpu_->create_stream(0);
  }
  void TearDown() override {
    if (stream_ != nullptr) {
      EXPECT_OK(vmem_stream_close(stream_));
    }
    EXPECT_OK(vmem_shutdown());
    gpu_.reset();
    daemon_.reset();
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  vmem_status start(std::uint64_t host_mib) {
    const auto& [chain, machine] = GetParam();
    const std::string hbm = fmt::format("{}MiB", machine.hbm_mib), host = fmt::format("{}MiB", host_mib);
    const std::string peers = fmt::format("1:{}MiB", machine.hbm_mib / 2);
    const std::string nvme = fmt::format("{}:{}MiB", folder_, machine.hbm_mib);
    std::vector<vmem_option> options{
        {"devices", "0"}, {"hbm", hbm.c_str()}, {"host", host.c_str()}, {"page", machine.page}};
    if (chain.peer) options.push_back({"peers", peers.c_str()});
    if (chain.nvme) options.push_back({"nvme", nvme.c_str()});
    if (chain.remote) options.push_back({"remote", daemon_->address().c_str()});
    return start_vmem(options);
  }
  void start_with_the_least_host_memory() {
    std::uint64_t host_mib = 2;
    while (start(host_mib) != VMEM_OK) {
      host_mib += 2;
      ASSERT_LT(host_mib, 64u) << vmem_last_error();
    }
    RecordProperty("host_mib", int(host_mib));
  }

  // Nothing if malloc refuses for lack of memory.
  std::optional<Allocation> allocate(std::size_t pages) {
    void* memory = nullptr;
    const vmem_status status = vmem_malloc(&memory, pages * kPage, 0, nullptr);
    if (status == VMEM_OK) return Allocation(static_cast<std::byte*>(memory), pages);
    EXPECT_EQ(status, VMEM_ERROR_OUT_OF_MEMORY) << vmem_last_error();
    return std::nullopt;
  }
  std::size_t most_pages() {
    std::size_t pages = 0;
    while (const auto allocation = allocate(pages + 1)) {
      free(*allocation);
      ++pages;
    }
    return pages;
  }
  void free(const Allocation& allocation) {
    ASSERT_OK(vmem_free(allocation.base(), nullptr));
    ASSERT_OK(vmem_quiesce());
  }
  void work_through(std::span<Allocation* const> allocations, Order order) {
    SCOPED_TRACE(fmt::format("order {}", int(order)));
    for (Allocation* each : allocations) {
      for (const std::size_t page : visits<std::size_t>(order, each->pages())) {
        each->use(page, *gpu_, stream_, wrong_);
        if (HasFatalFailure()) return;
      }
    }
    gpu_->synchronize(stream_);
    ASSERT_EQ(wrong_, 0u);
    for (Allocation* each : allocations) {
      for (const std::size_t page : visits<std::size_t>(order, each->pages())) {
        each->read(page);
        if (HasFatalFailure()) return;
        each->write(page);
        if (HasFatalFailure()) return;
      }
    }
  }
  // The CPU writes first, which fills the tiers below HBM and leaves HBM empty.
  void use_all(std::span<Allocation* const> allocations) {
    for (Allocation* each : allocations) {
      for (std::size_t page = 0; page < each->pages() && !HasFatalFailure(); ++page) each->write(page);
    }
    for (const Order order : kOrders) {
      if (HasFatalFailure()) return;
      work_through(allocations, order);
    }
  }

  std::optional<EmulatedGpu> gpu_;
  std::unique_ptr<runtime::Daemon> daemon_;
  std::string folder_;
  CUstream stream_ = nullptr;
  std::size_t wrong_ = 0;
};

TEST_P(Usable, EverySizeThatMallocAccepts) {
  const std::size_t most = most_pages();
  RecordProperty("most_pages", int(most));
  EXPECT_GT(most * kPage, std::get<Machine>(GetParam()).hbm_mib * kMiB / 2);
  for (const std::size_t pages : sizes_to_use(most)) {
    SCOPED_TRACE(fmt::format("{} of {} pages", pages, most));
    auto allocation = allocate(pages);
    ASSERT_TRUE(allocation);
    Allocation* const all[] = {&*allocation};
    use_all(all);
    if (HasFailure()) return;
    free(*allocation);
  }
}

// A small allocation first, then the largest that is accepted, and the other way round.
TEST_P(Usable, WhatIsLeftBesideAnotherAllocation) {
  for (const bool small_first : {true, false}) {
    SCOPED_TRACE(small_first ? "the small one first" : "the large one first");
    std::optional<Allocation> small, large;
    if (small_first) small = allocate(5);
    for (std::size_t pages = 512; pages > 0 && !large; --pages) {
      large = allocate(pages);
      if (!large || small_first) continue;
      small = allocate(5);
      if (small) continue;
      free(*large);
      large.reset();
    }
    ASSERT_TRUE(small && large);
    Allocation* const both[] = {&*small, &*large};
    use_all(both);
    if (HasFailure()) return;
    free(*small);
    free(*large);
  }
}

INSTANTIATE_TEST_SUITE_P(, Usable, ::testing::Combine(::testing::ValuesIn(kChains), ::testing::ValuesIn(kMachines)),
                         [](const auto& each) {
                           return std::string(std::get<Chain>(each.param).name) + std::get<Machine>(each.param).name;
                         });

}  // namespace
}  // namespace vmem::test
