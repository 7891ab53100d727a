// A temporary lack of memory: in three programs, one allocation of each call stack fails, on any
// thread. Calls may be refused with OUT_OF_MEMORY; no process ends, and every byte that a call
// accepted is intact afterwards. The seed (VMEM_TEST_SEED) chooses the call stacks refused
// together, and their order.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <random>
#include <vector>

#include "base/log.hpp"
#include "campaign/seeds.hpp"
#include "runtime/emulated_gpu.hpp"
#include "runtime/failing_allocations.hpp"
#include "runtime/remote/daemon.hpp"
#include "runtime/runtime.hpp"

namespace vmem::test {
namespace {

using runtime::Runtime;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kPage = 2 * kMiB;
constexpr std::uint32_t kAtATime = 4;    // refusals in one run of a program
constexpr std::uint32_t kMostApart = 5;  // exclusive bound on new call stacks between two refusals

// A part of the call stacks; the nightly run continues until none is left.
std::size_t runs_at_most() {
  const char* const given = std::getenv("VMEM_TEST_SEEDS");
  return given == nullptr ? 15 : std::size_t(std::strtoul(given, nullptr, 10));
}

// As the C API does.
template <class Call>
Status guarded(Call&& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    const FailingAllocations::Spared spared;
    return fail(VMEM_ERROR_OUT_OF_MEMORY, "the process is out of memory for vmem's own bookkeeping");
  }
}

// A program's memory and its expected contents.
class Memory {
 public:
  Memory(Runtime& runtime, EmulatedGpu& gpu, std::size_t pages) : runtime_(runtime), gpu_(gpu), versions_(pages) {
    stream_ = gpu.create_stream(0);
    buffer_.resize(kPage / 8);
  }
  ~Memory() { gpu_.destroy_stream(stream_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::size_t pages() const { return versions_.size(); }
  bool allocated() const { return base_ != nullptr; }
  void allocate() {
    note(guarded([&]() -> Status {
      VMEM_ASSIGN(void* const memory, runtime_.allocations().allocate(versions_.size() * kPage, 0, stream_));
      base_ = static_cast<std::byte*>(memory);
      return {};
    }));
  }
  // Returns whether the page was written; if not, its contents are undefined.
  bool write(std::size_t page) {
    const std::uint64_t version = ++last_version_;
    fill_buffer(page, version);
    const bool written = note(guarded([&] { return runtime_.copies().write(at(page), buffer_.data(), kPage); }));
    versions_[page] = written ? version : 0;
    return written;
  }
  // Returns whether the page could be read; checks what was read.
  bool read(std::size_t page) {
    if (!note(guarded([&] { return runtime_.copies().read(buffer_.data(), at(page), kPage); }))) return false;
    expect_right(page);
    return true;
  }
  // Like read, by the GPU in HBM.
  bool use(std::size_t page) {
    const std::array range{vmem_range{at(page), kPage, VMEM_READ, 0}};
    if (!note(guarded([&] { return runtime_.hit_path().acquire(range, stream_); }))) return false;
    bool right = true;
    const std::uint64_t first = std::uint64_t{page} << 40 | versions_[page] << 20;
    const bool known = versions_[page] != 0;
    {
      const FailingAllocations::Spared spared;
      EXPECT_EQ(gpu_.launch(stream_, 0,
                            [&] {
                              const auto* words = reinterpret_cast<const std::uint64_t*>(at(page));
                              for (std::size_t i = 0; known && i < kPage / 8; i += 509)
                                right = right && words[i] == first + i;
                            }),
                CUDA_SUCCESS);
      gpu_.synchronize(stream_);
    }
    {
      const FailingAllocations::Spared spared;
      EXPECT_TRUE(right) << "page " << page << " by the GPU";
    }
    // Only this thread can release the hold, and a remaining hold blocks everything.
    if (!note(guarded([&] { return runtime_.hit_path().release(range, stream_); }))) {
      const FailingAllocations::Spared spared;
      EXPECT_TRUE(guarded([&] { return runtime_.hit_path().release(range, stream_); }));
    }
    return true;
  }
  void advise(std::size_t page, vmem_advice advice) {
    note(guarded([&] { return runtime_.requests().advise(at(page), kPage, advice); }));
  }
  void prefetch(std::size_t first, std::size_t count) {
    note(guarded([&] { return runtime_.requests().prefetch(at(first), count * kPage); }));
  }
  // With memory available again: everything accepted is intact, and every refused call succeeds.
  void verify() {
    if (base_ == nullptr) allocate();
    ASSERT_NE(base_, nullptr);
    for (std::size_t page = 0; page < versions_.size(); ++page) {
      EXPECT_TRUE(versions_[page] == 0 || read(page)) << "page " << page << ": " << last_error_;
      if (page % 7 == 0) {
        EXPECT_TRUE(write(page)) << "page " << page << ": " << last_error_;
      }
    }
    for (std::size_t page = 0; page < versions_.size(); page += 3)
      EXPECT_TRUE(use(page)) << "page " << page << ": " << last_error_;
    const Status freed = runtime_.allocations().free(base_, stream_);
    EXPECT_TRUE(freed) << freed.error().message;
    EXPECT_TRUE(runtime_.close_stream(stream_));
    EXPECT_TRUE(runtime_.requests().quiesce());
  }

 private:
  std::byte* at(std::size_t page) const { return base_ + page * kPage; }
  void fill_buffer(std::size_t page, std::uint64_t version) {
    std::iota(buffer_.begin(), buffer_.end(), std::uint64_t{page} << 40 | version << 20);
  }
  void expect_right(std::size_t page) {
    if (versions_[page] == 0) return;
    const FailingAllocations::Spared spared;
    const std::uint64_t first = std::uint64_t{page} << 40 | versions_[page] << 20;
    for (std::size_t i = 0; i < buffer_.size(); ++i) ASSERT_EQ(buffer_[i], first + i) << "page " << page;
  }
  bool note(const Status& status) {
    if (status) return true;
    const FailingAllocations::Spared spared;
    last_error_ = status.error().message;
    EXPECT_NE(status.error().status, VMEM_ERROR_LOST) << last_error_;
    EXPECT_NE(status.error().status, VMEM_ERROR_DEVICE_LOST) << last_error_;
    EXPECT_NE(status.error().status, VMEM_ERROR_INTERNAL) << last_error_;
    return false;
  }

  Runtime& runtime_;
  EmulatedGpu& gpu_;
  CUstream stream_ = nullptr;
  std::byte* base_ = nullptr;
  std::vector<std::uint64_t> versions_;  // 0: undefined
  std::uint64_t last_version_ = 0;
  std::vector<std::uint64_t> buffer_;
  std::string last_error_;
};

class AllocationFailure : public ::testing::Test {
 protected:
  AllocationFailure() { log::set_level(log::Level::off); }
  ~AllocationFailure() override { log::set_level(log::Level::warn); }

  static Options small_machine() {
    Options options;
    options.space_bytes = 4096 * kMiB;
    options.hbm_bytes = 32 * kMiB;
    options.host_bytes = 32 * kMiB;
    options.page_bytes = kPage;
    options.devices = {0};
    options.acquire_wait_us = 1000;
    return options;
  }

  // Runs the program until every one of its call stacks was refused once, or the limit of runs.
  template <class Program>
  void refuse_all(const Options& options, const char* machine, std::size_t pages, Program program) {
    std::mt19937_64 random(printed_seed());
    std::size_t run = 0, quiet = 0;
    std::uint64_t refused_in_all = 0;
    // New call stacks between two refusals. Every third run has none between: three consecutive
    // runs without a refusal have met no new one.
    const auto apart = [&] { return run % 3 == 0 ? 0 : std::uint32_t(random() % kMostApart); };
    for (; run < runs_at_most() && quiet < 3 && !HasFailure(); ++run) {
      SCOPED_TRACE(fmt::format("run {}", run));
      EmulatedGpu gpu(machine);
      // The start fails as a whole, or not at all.
      FailingAllocations::arm(1, apart());
      std::unique_ptr<Runtime> made;
      const Status started = guarded([&]() -> Status {
        VMEM_ASSIGN(made, Runtime::create(options, gpu.driver()));
        return {};
      });
      std::uint32_t refused = FailingAllocations::disarm();
      if (!started) {
        EXPECT_NE(started.error().status, VMEM_ERROR_INTERNAL) << started.error().message;
        made = *Runtime::create(options, gpu.driver());
      }
      {
        Memory memory(*made, gpu, pages);
        FailingAllocations::arm(kAtATime, apart());
        program(memory);
        refused += FailingAllocations::disarm();
        memory.verify();
      }
      vmem_statistics stats{};
      EXPECT_TRUE(made->statistics(stats));
      EXPECT_LE(stats.committed_bytes, 2 * kMiB);
      EXPECT_TRUE(made->shut_down());
      made.reset();
      quiet = refused == 0 ? quiet + 1 : 0;
      refused_in_all += refused;
    }
    RecordProperty("runs", int(run));
    RecordProperty("refused", int(refused_in_all));
    std::printf("%zu runs, %llu call stacks refused\n", run, static_cast<unsigned long long>(refused_in_all));
  }
};

TEST_F(AllocationFailure, OfPagesThatGoToADiskCompressedLosesNothing) {
  std::string folder = ::testing::TempDir() + "vmem-memory-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  Options options = small_machine();
  options.nvme = {{folder, 128 * kMiB}};
  options.compress = "lz4";
  refuse_all(options, "devices=1,hbm=64MiB,host=256MiB", 48, [](Memory& memory) {
    memory.allocate();
    if (!memory.allocated()) return;
    for (std::size_t page = 0; page < memory.pages(); ++page) memory.write(page);
    for (std::size_t page = 0; page < memory.pages(); ++page) memory.read(page);
    for (std::size_t page = 0; page < memory.pages(); page += 5) memory.use(page);
  });
  std::filesystem::remove_all(folder);
}

TEST_F(AllocationFailure, OfPagesThatGoToAnotherNodeLosesNothing) {
  runtime::DaemonOptions lending;
  lending.listen = "127.0.0.1:0";
  lending.lend_bytes = 256 * kMiB;
  lending.grace_us = 100'000;
  const auto daemon = runtime::Daemon::start(lending);
  ASSERT_TRUE(daemon) << daemon.error().message;
  Options options = small_machine();
  options.remote = {(*daemon)->address()};
  options.remote_channels = 2;
  refuse_all(options, "devices=1,hbm=64MiB,host=256MiB", 48, [](Memory& memory) {
    memory.allocate();
    if (!memory.allocated()) return;
    for (std::size_t page = 0; page < memory.pages(); ++page) memory.write(page);
    for (std::size_t page = 0; page < memory.pages(); ++page) memory.read(page);
    for (std::size_t page = 0; page < memory.pages(); page += 5) memory.use(page);
  });
}

TEST_F(AllocationFailure, OfPagesThatComeAndGoBetweenTwoGpusAndTheHostLosesNothing) {
  Options options = small_machine();
  options.host_bytes = 64 * kMiB;
  options.peers = {{.device = 1, .bytes = 16 * kMiB, .socket = ""}};
  refuse_all(options, "devices=2,hbm=64MiB,host=256MiB", 36, [](Memory& memory) {
    memory.allocate();
    if (!memory.allocated()) return;
    for (std::size_t page = 0; page < memory.pages(); ++page) memory.write(page);
    for (std::size_t page = 0; page < memory.pages(); ++page) memory.use(page);
    memory.prefetch(0, 8);
    for (std::size_t page = 0; page < memory.pages(); page += 2) memory.advise(page, VMEM_ADVISE_EVICT);
    for (std::size_t page = 0; page < memory.pages(); page += 3) memory.read(page);
    memory.advise(1, VMEM_ADVISE_IN_PLACE);
    memory.use(1);
    for (std::size_t page = 0; page < memory.pages(); page += 2) memory.use(page);
  });
}

// Even the reserve does not suffice: the partial work of the malloc is undone. The arrays of a
// region as large as the machine are the only allocations of this size meanwhile.
TEST_F(AllocationFailure, AMallocThatLacksMemoryForItsArraysCommitsNothing) {
  std::string folder = ::testing::TempDir() + "vmem-memory-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  Options options = small_machine();
  options.nvme = {{folder, 640 * kMiB}};
  EmulatedGpu gpu("devices=1,hbm=64MiB,host=256MiB");
  const auto runtime = *Runtime::create(options, gpu.driver());
  CUstream const stream = gpu.create_stream(0);
  constexpr std::size_t kBytes = 640 * kMiB;  // 320 pages
  std::uint32_t refused = 0, stages = 0;
  for (bool had = false; !had; ++stages) {
    SCOPED_TRACE(fmt::format("the first {} arrays are given", stages));
    FailingAllocations::arm_from(4096, stages);
    const auto allocated = guarded([&]() -> Status {
      VMEM_ASSIGN(void* const memory, runtime->allocations().allocate(kBytes, 0, stream));
      return runtime->allocations().free(memory, stream);
    });
    refused = FailingAllocations::disarm();
    had = refused == 0;
    if (had) {
      EXPECT_TRUE(allocated);
    } else if (!allocated) {
      EXPECT_EQ(allocated.error().status, VMEM_ERROR_OUT_OF_MEMORY) << allocated.error().message;
    }
    // Nothing is committed, and a later malloc succeeds.
    const auto again = runtime->allocations().allocate(kBytes, 0, stream);
    ASSERT_TRUE(again) << again.error().message;
    ASSERT_TRUE(runtime->allocations().free(*again, stream));
    ASSERT_TRUE(runtime->requests().quiesce());
    vmem_statistics stats{};
    ASSERT_TRUE(runtime->statistics(stats));
    EXPECT_EQ(stats.committed_bytes, 0u);
  }
  EXPECT_GE(stages, 3u);
  gpu.destroy_stream(stream);
  EXPECT_TRUE(runtime->shut_down());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace vmem::test
