// Programs that do not call vmem, as the hooks see them: several threads make random allocations,
// copies, frees, and launches that name whole allocations but not their writes. HBM holds only a
// part, and blocks share pages. Every launch checks, as device code, the contents against its
// thread's model.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "runtime/emulated_gpu.hpp"
#include "runtime/runtime.hpp"

namespace vmem::test {
namespace {

using runtime::LaunchHolds;
using runtime::Runtime;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr unsigned kThreads = 3;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kSteps = 150;
#else
constexpr int kSteps = 400;
#endif

class Program {
 public:
  Program(Runtime& runtime, EmulatedGpu& gpu, std::uint64_t seed)
      : runtime_(runtime), gpu_(gpu), random_(seed), stream_(gpu.create_stream(0)) {}

  void run() {
    gpu_.make_current(0);
    for (int step = 0; step < kSteps && !failed_; ++step) {
      const unsigned dice = below(20);
      if (buffers_.empty() || dice < 4) {
        allocate();
      } else if (dice < 6) {
        release(below(buffers_.size()));
      } else if (dice < 8) {
        copy_from_host(buffers_[below(buffers_.size())]);
      } else {
        launch();
      }
    }
    while (!buffers_.empty()) release(buffers_.size() - 1);
    gpu_.synchronize(stream_);
    ok(runtime_.close_stream(stream_));
  }
  bool failed() const { return failed_; }

 private:
  // A few words at its ends and in its middle stand for the whole buffer.
  struct Buffer {
    std::byte* at = nullptr;
    std::size_t bytes = 0;
    std::uint32_t value = 0;
    std::vector<std::size_t> places() const { return {0, bytes / 2 / 4 * 4, bytes - 4}; }
  };

  unsigned below(std::size_t limit) { return unsigned(random_() % limit); }
  void ok(const Status& status) {
    if (status) return;
    ADD_FAILURE() << status.error().message;
    failed_ = true;
  }

  void allocate() {
    if (buffers_.size() == 8) return release(below(buffers_.size()));
    constexpr std::size_t kSizes[] = {1000, 2 * kMiB, 3 * kMiB, 8 * kMiB, 12 * kMiB};
    Buffer buffer;
    buffer.bytes = kSizes[below(std::size(kSizes))] / 4 * 4;
    auto memory = runtime_.blocks().allocate(buffer.bytes, 0, stream_);
    if (!memory) return ok(std::unexpected(memory.error()));
    buffer.at = static_cast<std::byte*>(*memory);
    buffers_.push_back(buffer);
    write(buffers_.back());
  }

  void release(std::size_t index) {
    const Buffer buffer = buffers_[index];
    buffers_.erase(buffers_.begin() + std::ptrdiff_t(index));
    const bool waits = below(4) == 0;
    if (waits) gpu_.synchronize(stream_);
    ok(runtime_.blocks().free(buffer.at, waits ? std::nullopt : std::optional<vmem_stream>(stream_)));
  }

  // Reads one or more buffers, and may write them.
  void launch() {
    std::vector<std::size_t> chosen(1 + below(std::min<std::size_t>(3, buffers_.size())));
    for (std::size_t& each : chosen) each = below(buffers_.size());
    std::ranges::sort(chosen);
    const auto repeated = std::ranges::unique(chosen);
    chosen.erase(repeated.begin(), repeated.end());
    const bool writes = below(2) == 0;
    std::vector<std::uintptr_t> addresses;
    std::vector<Buffer> expected;
    for (const std::size_t each : chosen) {
      expected.push_back(buffers_[each]);
      if (writes) ++buffers_[each].value;
      addresses.push_back(reinterpret_cast<std::uintptr_t>(buffers_[each].at) + below(buffers_[each].bytes));
    }
    addresses.push_back(0x1234);  // foreign addresses are skipped
    queue(addresses, [this, expected, writes] {
      for (const Buffer& buffer : expected) {
        for (const std::size_t place : buffer.places()) {
          std::uint32_t found = 0;
          std::memcpy(&found, buffer.at + place, sizeof found);
          if (found != buffer.value) wrong_.fetch_add(1);
          const std::uint32_t next = buffer.value + 1;
          if (writes) std::memcpy(buffer.at + place, &next, sizeof next);
        }
      }
    });
  }

  void write(Buffer& buffer) {
    buffer.value = std::uint32_t(random_());
    queue({reinterpret_cast<std::uintptr_t>(buffer.at)}, [buffer] {
      for (const std::size_t place : buffer.places())
        std::memcpy(buffer.at + place, &buffer.value, sizeof buffer.value);
    });
  }

  void copy_from_host(Buffer& buffer) {
    buffer.value = std::uint32_t(random_());
    std::vector<std::uint32_t> host(buffer.bytes / 4, buffer.value);
    ok(runtime_.copies().copy(buffer.at, host.data(), buffer.bytes, stream_));
    gpu_.synchronize(stream_);
  }

  template <class Body>
  void queue(const std::vector<std::uintptr_t>& addresses, Body body) {
    if (auto ready = runtime_.launches().begin(addresses, stream_, below(8) == 0, holds_); !ready) return ok(ready);
    if (gpu_.launch(stream_, 0, body) != CUDA_SUCCESS) {
      runtime_.launches().abandon(holds_);
      return ok(fail(VMEM_ERROR_DRIVER, "the launch failed"));
    }
    ok(runtime_.launches().end(holds_));
    if (wrong_.load() != 0) {
      ADD_FAILURE() << wrong_.load() << " words were not what was last written there";
      failed_ = true;
    }
  }

  Runtime& runtime_;
  EmulatedGpu& gpu_;
  std::mt19937_64 random_;
  const CUstream stream_;
  LaunchHolds holds_;
  std::vector<Buffer> buffers_;
  std::atomic<int> wrong_{0};
  bool failed_ = false;
};

class UndeclaredModel : public ::testing::TestWithParam<int> {};

TEST_P(UndeclaredModel, LaunchesFindWhatWasWritten) {
  const auto base = std::uint64_t(GetParam()) * 1000;
  for (std::uint64_t seed = base; seed < base + 2; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    EmulatedGpu gpu("devices=1,hbm=256MiB,host=512MiB");
    Options options;
    options.space_bytes = 8192 * kMiB;
    options.hbm_bytes = 32 * kMiB << (seed % 3);
    // Pages of 2 MiB hold one block each, larger ones several.
    if (seed % 2 == 0) options.page_bytes = *options.hbm_bytes / 8;
    options.host_bytes = 384 * kMiB;
    options.devices = {0};
    options.acquire_wait_us = 20'000;
    auto runtime = Runtime::create(options, gpu.driver());
    ASSERT_TRUE(runtime) << runtime.error().message;
    {
      std::vector<std::unique_ptr<Program>> programs;
      for (unsigned i = 0; i < kThreads; ++i)
        programs.push_back(std::make_unique<Program>(**runtime, gpu, seed * kThreads + i));
      std::vector<std::jthread> threads;
      for (auto& program : programs) threads.emplace_back([&program] { program->run(); });
    }
    auto ended = (*runtime)->shut_down();
    EXPECT_TRUE(ended);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, UndeclaredModel, ::testing::Range(0, 8));

}  // namespace
}  // namespace vmem::test
