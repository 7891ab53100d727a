// Disks that fail under a running program: the file system is shut down, full, read-only, removed,
// or without its device. No call exceeds its time limit, no byte is wrong, no page is lost, and the
// log takes a few lines.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ostream>
#include <random>
#include <thread>

#include "campaign/seeds.hpp"
#include "runtime/loop_file_system.hpp"
#include "runtime/runtime_fixture.hpp"
#include "runtime/watched_pages.hpp"

namespace vmem::test {
namespace {

using std::chrono::steady_clock;
using ::testing::HasSubstr;

constexpr std::size_t kPage = WatchedPages::kPage;
constexpr std::size_t kPages = 56;  // 112 MiB, of which 64 fit above the disk
constexpr auto kCallWait = std::chrono::seconds(2);
constexpr auto kMost = kCallWait + std::chrono::seconds(1);
constexpr std::ptrdiff_t kMostLines = 60;

int rounds() {
  const char* const given = std::getenv("VMEM_TEST_DYING_DISKS");
  return given == nullptr ? 1 : std::atoi(given);
}

enum class Death : std::uint8_t { shut_down, read_only, full, no_device, removed };

struct Case {
  const char* name;
  Death death;
  // For gtest's lists of tests.
  friend void PrintTo(const Case& each, std::ostream* out) { *out << each.name; }
};

class DyingDisk : public ::testing::TestWithParam<Case> {
 protected:
  void TearDown() override {
    vmem_shutdown();
    gpu_.reset();
  }
  static bool kill(const LoopFileSystem& disk, Death death) {
    switch (death) {
      case Death::shut_down:
        return disk.shut_down();
      case Death::read_only:
        return disk.make_read_only();
      case Death::full:
        return disk.fill_up();
      case Death::no_device:
        return disk.lose_the_disk();
      case Death::removed:
        return disk.remove_directory();
    }
    return false;
  }
  void start(const std::string& folder) {
    gpu_.emplace("devices=1,hbm=64MiB,host=256MiB");
    const std::string nvme = folder + ":128MiB";
    ASSERT_OK(start_vmem({{"hbm", "32MiB"},
                          {"host", "32MiB"},
                          {"page", "2MiB"},
                          {"devices", "0"},
                          {"compress", "off"},
                          {"nvme", nvme.c_str()},
                          {"call_wait", "2s"},
                          {"log", "warn"}}));
    void* memory = nullptr;
    ASSERT_OK(vmem_malloc(&memory, kPages * kPage, 0, nullptr));
    base_ = static_cast<std::byte*>(memory);
    for (CUstream& stream : streams_) stream = gpu_->create_stream(0);
    // A device without blocks reads as zeros: these pages have a checksum mismatch.
    const bool may_lose = GetParam().death == Death::no_device;
    pages_.emplace(WatchedPages::Config{.gpu = &*gpu_,
                                        .base = base_,
                                        .pages = kPages,
                                        .longest = kMost,
                                        .refusable = [may_lose](vmem_status status, const std::string&) {
                                          return status == VMEM_ERROR_OUT_OF_MEMORY || status == VMEM_ERROR_TIMEOUT ||
                                                 status == VMEM_ERROR_DRIVER || (may_lose && status == VMEM_ERROR_LOST);
                                        }});
    for (std::size_t page = 0; page < kPages; ++page) ASSERT_EQ(pages_->write(page), VMEM_OK) << vmem_last_error();
  }
  // From two threads, `calls` each, until `end`.
  void use(std::uint64_t seed, int calls, steady_clock::time_point end) {
    const auto use_from = [&](std::size_t thread) {
      gpu_->make_current(0);
      std::mt19937_64 random(seed + thread);
      for (int i = 0; i < calls && steady_clock::now() < end && !HasFailure(); ++i) {
        const auto call = WatchedPages::kCalls[random() % std::size(WatchedPages::kCalls)];
        (void)pages_->make(call, random() % kPages, streams_[thread], random);
      }
    };
    std::thread other(use_from, 1);
    use_from(0);
    other.join();
  }
  std::size_t readable(steady_clock::time_point end) {
    std::size_t right = 0;
    for (std::size_t page = 0; page < kPages && !HasFailure() && steady_clock::now() < end; ++page)
      right += pages_->read(page, streams_[0]) == VMEM_OK ? 1 : 0;
    return right;
  }

  std::optional<EmulatedGpu> gpu_;
  CUstream streams_[2] = {};
  std::byte* base_ = nullptr;
  std::optional<WatchedPages> pages_;
};

// Keeps one processor busy while it lives.
class BusyLoop {
 public:
  ~BusyLoop() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_{[this] {
    while (!stop_) {
    }
  }};
};

TEST_P(DyingDisk, NoCallHangsAndNoPageIsLost) {
  const std::uint64_t first_seed = printed_seed();
  for (int round = 0; round < rounds() && !HasFailure(); ++round) {
    const std::uint64_t seed = first_seed + std::uint64_t(round);
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const LoopFileSystem disk(192 * kMiB);
    if (disk.why_not()) GTEST_SKIP() << *disk.why_not();
    start(disk.path());
    if (HasFatalFailure()) return;
    const BusyLoop load;
    std::mt19937_64 random(seed);
    testing::internal::CaptureStderr();
    use(random(), 15, steady_clock::time_point::max());
    EXPECT_EQ(pages_->refused(), 0u) << pages_->last_error();
    // Every other time with copies in flight: the contents of host memory are then unknown.
    const bool quiet = random() % 2 == 0;
    if (quiet) {
      EXPECT_OK(vmem_quiesce());
    }
    const std::size_t in_host = quiet ? statistics().host_used_bytes / kPage : 0;
    EXPECT_TRUE(kill(disk, GetParam().death));
    use(random(), 40, steady_clock::now() + std::chrono::seconds(6));
    const std::size_t right = readable(steady_clock::now() + std::chrono::seconds(12));
    const auto used = statistics();
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_LE(std::ranges::count(log, '\n'), kMostLines) << log;
    const bool dead = GetParam().death == Death::shut_down || GetParam().death == Death::read_only;
    if (dead) {
      EXPECT_EQ(used.nvme_budget_bytes, 0u) << "capacity follows";
      EXPECT_THAT(log, HasSubstr(disk.path()));
      void* more = nullptr;
      EXPECT_EQ(vmem_malloc(&more, 48 * kMiB, 0, nullptr), VMEM_ERROR_OUT_OF_MEMORY);
    }
    if (GetParam().death == Death::removed) {
      EXPECT_EQ(right, kPages) << "open files live on: " << pages_->last_error();
      EXPECT_EQ(pages_->refused(), 0u) << pages_->last_error();
    }
    // A clean page may have been evicted for the page whose load detected the failure.
    EXPECT_GE(right + 1, in_host) << "pages above the disk: " << pages_->last_error();
    std::printf("%s: %zu of %zu pages readable, %llu calls refused, longest %lld ms, %td lines\n  %s\n",
                GetParam().name, right, kPages, static_cast<unsigned long long>(pages_->refused()),
                static_cast<long long>(pages_->longest().count()), std::ranges::count(log, '\n'),
                pages_->last_error().c_str());
    EXPECT_OK(vmem_free(base_, nullptr));
    EXPECT_OK(vmem_shutdown());
    gpu_.reset();
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, DyingDisk,
                         ::testing::Values(Case{"ShutDown", Death::shut_down}, Case{"ReadOnly", Death::read_only},
                                           Case{"Full", Death::full}, Case{"NoDevice", Death::no_device},
                                           Case{"Removed", Death::removed}),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace vmem::test
