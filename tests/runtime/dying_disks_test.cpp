// Disks that die under a program that uses them: a file system that is shut down, full, read-only, whose device is gone, or
// that is removed. No call takes longer than it may, no byte is wrong, no page is lost, and the log says it in a few lines.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <ostream>
#include <random>
#include <vector>

#include "runtime/loop_file_system.hpp"
#include "runtime/runtime_fixture.hpp"

namespace vmem::test {
namespace {

using std::chrono::steady_clock;
using ::testing::HasSubstr;

constexpr std::size_t kPage = 2 * kMiB;
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
  // As tests are listed.
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
    versions_.assign(kPages, 0);
    buffer_.resize(kPage / 8);
    for (std::size_t page = 0; page < kPages; ++page) ASSERT_EQ(write(page), VMEM_OK) << vmem_last_error();
  }
  vmem_status write(std::size_t page) {
    const std::uint64_t version = ++last_version_;
    std::iota(buffer_.begin(), buffer_.end(), std::uint64_t{page} << 40 | version << 20);
    const vmem_status status = timed([&] { return vmem_write(base_ + page * kPage, buffer_.data(), kPage); });
    // What was refused before a byte was written has left the page as it was.
    if (status == VMEM_OK) versions_[page] = version;
    return status;
  }
  vmem_status read(std::size_t page) {
    const vmem_status status = timed([&] { return vmem_read(buffer_.data(), base_ + page * kPage, kPage); });
    const std::uint64_t first = std::uint64_t{page} << 40 | versions_[page] << 20;
    for (std::size_t i = 0; status == VMEM_OK && i < buffer_.size(); ++i) {
      if (buffer_[i] == first + i) continue;
      ADD_FAILURE() << "page " << page << " has other bytes at word " << i;
      break;
    }
    return status;
  }
  template <class Call>
  vmem_status timed(Call call) {
    const auto begun = steady_clock::now();
    const vmem_status status = call();
    const auto took = steady_clock::now() - begun;
    EXPECT_LT(took, kMost) << vmem_last_error();
    longest_ = std::max(longest_, took);
    if (status != VMEM_OK) {
      // A device without blocks reads as zeros: these pages' checksums differ.
      const bool may_lose = GetParam().death == Death::no_device;
      EXPECT_TRUE(status == VMEM_ERROR_OUT_OF_MEMORY || status == VMEM_ERROR_TIMEOUT || status == VMEM_ERROR_DRIVER ||
                  (may_lose && status == VMEM_ERROR_LOST))
          << vmem_last_error();
      ++refused_;
      last_error_ = vmem_last_error();
    }
    return status;
  }

  std::optional<EmulatedGpu> gpu_;
  std::byte* base_ = nullptr;
  std::vector<std::uint64_t> versions_;
  std::uint64_t last_version_ = 0;
  std::vector<std::uint64_t> buffer_;
  steady_clock::duration longest_{};
  std::uint64_t refused_ = 0;
  std::string last_error_;
};

TEST_P(DyingDisk, NoCallHangsAndNoPageIsLost) {
  for (int round = 0; round < rounds() && !HasFailure(); ++round) {
    const std::uint64_t seed = std::random_device{}();
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const LoopFileSystem disk(192 * kMiB);
    if (disk.why_not()) GTEST_SKIP() << *disk.why_not();
    start(disk.path());
    if (HasFatalFailure()) return;
    std::mt19937_64 random(seed);
    longest_ = {};
    refused_ = 0;
    last_error_.clear();
    testing::internal::CaptureStderr();
    const auto use = [&](int times) {
      for (int i = 0; i < times && !HasFailure(); ++i)
        (void)(random() % 2 == 0 ? write(random() % kPages) : read(random() % kPages));
    };
    use(20);
    // Every other time in the midst of copies: nobody can say what is in host memory then.
    const bool quiet = random() % 2 == 0;
    if (quiet) {
      EXPECT_OK(vmem_quiesce());
    }
    const std::size_t in_host = quiet ? statistics().host_used_bytes / kPage : 0;
    EXPECT_TRUE(kill(disk, GetParam().death));
    const auto end = steady_clock::now() + std::chrono::seconds(10);
    for (int i = 0; i < 60 && steady_clock::now() < end; ++i) use(1);
    std::size_t right = 0;
    for (std::size_t page = 0; page < kPages && !HasFailure(); ++page) {
      if (steady_clock::now() > end + std::chrono::seconds(20)) break;
      right += read(page) == VMEM_OK ? 1 : 0;
    }
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
      EXPECT_EQ(right, kPages) << "open files live on: " << last_error_;
      EXPECT_EQ(refused_, 0u) << last_error_;
    }
    // A clean page may have made room for one whose load was the first to find the disk dead.
    EXPECT_GE(right + 1, in_host) << "pages above the disk: " << last_error_;
    std::printf("%s: %zu of %zu pages readable, %llu calls refused, longest %lld ms, %td lines\n  %s\n",
                GetParam().name, right, kPages, static_cast<unsigned long long>(refused_),
                static_cast<long long>(std::chrono::duration_cast<std::chrono::milliseconds>(longest_).count()),
                std::ranges::count(log, '\n'), last_error_.c_str());
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
