// Launches of programs that do not call vmem. While everything fits they log nothing, and no data
// may be lost by that.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/emulated_gpu.hpp"
#include "runtime/runtime.hpp"

namespace vmem::test {
namespace {

using runtime::LaunchHolds;
using runtime::Runtime;

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Parameter: whether launches first try begin_launch_of_anything.
struct UntrackedLaunches : ::testing::TestWithParam<bool> {
  EmulatedGpu gpu{"devices=2,hbm=512MiB,host=1GiB"};
  std::unique_ptr<Runtime> runtime;
  CUstream stream = nullptr;
  LaunchHolds holds;

  void SetUp() override { start({0}); }
  void start(std::vector<int> devices) {
    Options options;
    options.space_bytes = 8192 * kMiB;
    options.devices = std::move(devices);
    options.hbm_bytes = 64 * kMiB;
    options.host_bytes = 512 * kMiB;
    auto made = Runtime::create(options, gpu.driver());
    ASSERT_TRUE(made) << made.error().message;
    runtime = std::move(*made);
    gpu.make_current(0);
    stream = gpu.create_stream(0);
  }
  void TearDown() override {
    EXPECT_TRUE(runtime->close_stream(stream));
    EXPECT_TRUE(runtime->shut_down());
  }

  std::uint32_t* allocate(std::size_t mib) {
    auto made = runtime->blocks().allocate(mib * kMiB, 0, stream);
    EXPECT_TRUE(made) << made.error().message;
    return made ? static_cast<std::uint32_t*>(*made) : nullptr;
  }
  void begin(const std::vector<std::uint32_t*>& named, LaunchHolds& held, CUstream on) {
    if (GetParam() && runtime->launches().begin_if_all_resident(on, std::nullopt, held)) return;
    std::vector<std::uintptr_t> addresses;
    for (const std::uint32_t* each : named) addresses.push_back(reinterpret_cast<std::uintptr_t>(each));
    const auto ready = runtime->launches().begin(addresses, on, false, held);
    ASSERT_TRUE(ready) << ready.error().message;
  }
  void launch(const std::vector<std::uint32_t*>& named, const std::function<void()>& body) {
    begin(named, holds, stream);
    ASSERT_EQ(gpu.launch(stream, 0, body), CUDA_SUCCESS);
    ASSERT_TRUE(runtime->launches().end(holds));
  }
  void fill(std::uint32_t* at, std::uint32_t value) {
    launch({at}, [at, value] { *at = value; });
  }
  std::uint32_t read(std::uint32_t* at) {
    std::uint32_t found = 0;
    launch({at}, [at, &found] { found = *at; });
    gpu.synchronize(stream);
    return found;
  }
  vmem_statistics figures() {
    vmem_statistics all{};
    all.struct_bytes = sizeof all;
    EXPECT_TRUE(runtime->statistics(all));
    return all;
  }
  std::size_t in_hbm(const std::uint32_t* at) {
    vmem_pointer_info info{};
    EXPECT_TRUE(runtime->requests().query(at, info));
    return info.bytes_hbm;
  }
};

// Repeatedly uses more than HBM holds, so that nothing else has a better claim to HBM.
class Rival {
 public:
  Rival(UntrackedLaunches& test, CUstream stream) : test_(test), stream_(stream) {
    for (int i = 0; i < 10; ++i) {
      auto made = test.runtime->blocks().allocate(8 * kMiB, 0, stream);
      EXPECT_TRUE(made) << made.error().message;
      if (made) buffers_.push_back(static_cast<std::uint32_t*>(*made));
    }
  }
  void use_all() {
    for (std::uint32_t* const at : buffers_) {
      test_.begin({at}, holds_, stream_);
      ASSERT_EQ(test_.gpu.launch(stream_, 0, [at] { *at = 7; }), CUDA_SUCCESS);
      ASSERT_TRUE(test_.runtime->launches().end(holds_));
    }
    test_.gpu.synchronize(stream_);
  }

 private:
  UntrackedLaunches& test_;
  const CUstream stream_;
  LaunchHolds holds_;
  std::vector<std::uint32_t*> buffers_;
};

TEST_P(UntrackedLaunches, OfWhichNothingIsLoggedKeepWhatTheyUseUntilTheyEnd) {
  std::uint32_t* const at = allocate(8);
  fill(at, 1);
  std::atomic<bool> go{false};
  launch({at}, [at, &go] {
    go.wait(false);
    *at = 2;
  });
  ASSERT_TRUE(runtime->blocks().free(at, stream));
  ASSERT_TRUE(runtime->blocks().empty_cache());
  for (int i = 0; i < 100; ++i) EXPECT_EQ(figures().unmaps, 0u) << "the mover looked " << i << " times";
  go = true;
  go.notify_all();
  gpu.synchronize(stream);
  ASSERT_TRUE(runtime->requests().quiesce());
  while (figures().unmaps == 0) std::this_thread::yield();
}

// While all fits, deaths are not logged; the mover finds them when it must evict.
TEST_P(UntrackedLaunches, WhatDiedWhileAllFitLeavesFirst) {
  std::vector<std::uint32_t*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(allocate(8));
  for (std::uint32_t* const at : blocks) fill(at, 1);
  for (const std::size_t dies : {1u, 4u}) ASSERT_TRUE(runtime->blocks().free(blocks[dies], stream));
  ASSERT_EQ(figures().evictions, 0u);
  std::uint32_t* const larger = allocate(32);
  fill(larger, 2);
  EXPECT_EQ(read(larger), 2u);
  EXPECT_GT(figures().evictions, 0u);
  EXPECT_EQ(figures().migrated_out_bytes, 0u);
  for (const std::size_t lives : {0u, 2u, 3u, 5u}) EXPECT_EQ(in_hbm(blocks[lives]), 8 * kMiB) << lives;
}

// Kernels are given arrays of pointers of which they use a part; what lies in the rest may be an
// address that was freed long ago.
TEST_P(UntrackedLaunches, DoNotBringInWhatWasFreed) {
  for (const std::size_t mib : {8u, 40u}) {  // in shared pages, and a region of its own
    std::vector<std::uint32_t*> live;
    for (int i = 0; i < 8; ++i) live.push_back(allocate(8));
    std::uint32_t* const freed = allocate(mib);
    fill(freed, 1);
    gpu.synchronize(stream);
    ASSERT_TRUE(runtime->blocks().free(freed, stream));
    for (std::uint32_t* const at : live) fill(at, 2);
    gpu.synchronize(stream);
    const vmem_statistics before = figures();
    for (std::uint32_t* const at : live) launch({at, freed}, [at] { *at += 1; });
    gpu.synchronize(stream);
    const vmem_statistics after = figures();
    EXPECT_EQ(after.maps, before.maps) << mib << " MiB";
    EXPECT_EQ(after.evictions, before.evictions) << mib << " MiB";
    for (std::uint32_t* const at : live) EXPECT_EQ(read(at), 3u);
    TearDown();
    runtime.reset();
    SetUp();
  }
}

TEST_P(UntrackedLaunches, DoNotLoseWhatTheyWroteInALaterLifeOfABlock) {
  std::uint32_t* const at = allocate(8);
  fill(at, 1);
  ASSERT_TRUE(runtime->blocks().free(at, stream));
  ASSERT_EQ(allocate(8), at);
  fill(at, 2);
  ASSERT_EQ(figures().evictions, 0u);
  Rival rival(*this, stream);
  for (int round = 0; round < 50 && in_hbm(at) != 0; ++round) rival.use_all();
  ASSERT_EQ(in_hbm(at), 0u);
  EXPECT_EQ(read(at), 2u);
}

TEST_P(UntrackedLaunches, UnderWayWhenTheFirstPageLeavesAreSeenAllTheSame) {
  std::uint32_t* const at = allocate(8);
  fill(at, 1);
  gpu.synchronize(stream);
  begin({at}, holds, stream);
  const CUstream other = gpu.create_stream(0);
  Rival rival(*this, other);
  const auto from_another_thread = [&] {
    std::thread([&] {
      gpu.make_current(0);
      rival.use_all();
    }).join();
  };
  from_another_thread();
  // Tracking began too late for the launch, which holds everything.
  ASSERT_GT(figures().in_place_acquires, 0u);
  ASSERT_EQ(figures().evictions, 0u);
  std::atomic<bool> go{false};
  ASSERT_EQ(gpu.launch(stream, 0,
                       [at, &go] {
                         go.wait(false);
                         *at += 1;
                       }),
            CUDA_SUCCESS);
  ASSERT_TRUE(runtime->launches().end(holds));
  for (int round = 0; round < 4; ++round) from_another_thread();
  EXPECT_EQ(in_hbm(at), 8 * kMiB) << "it is in use";
  go = true;
  go.notify_all();
  gpu.synchronize(stream);
  for (int round = 0; round < 50 && in_hbm(at) != 0; ++round) from_another_thread();
  ASSERT_EQ(in_hbm(at), 0u) << "it would have left before";
  EXPECT_EQ(read(at), 2u);
  EXPECT_TRUE(runtime->close_stream(other));
}

// The launch cannot use memory that another thread frees, or writes by the CPU.
TEST_P(UntrackedLaunches, UnderWayKeepNobodyFromEndingWhatTheyDoNotUse) {
  std::uint32_t* const at = allocate(8);
  std::uint32_t* const cached = allocate(8);
  auto declared = runtime->allocations().allocate(8 * kMiB, 0, stream);
  ASSERT_TRUE(declared);
  for (std::uint32_t* each : {at, cached, static_cast<std::uint32_t*>(*declared)}) fill(each, 1);
  gpu.synchronize(stream);
  begin({at}, holds, stream);
  std::thread([&] {
    gpu.make_current(0);
    const std::uint32_t word = 7;
    EXPECT_TRUE(runtime->copies().write(*declared, &word, sizeof word));
    EXPECT_TRUE(runtime->allocations().free(*declared, stream));
    EXPECT_TRUE(runtime->blocks().free(cached, stream));
    EXPECT_TRUE(runtime->blocks().empty_cache());
  }).join();
  EXPECT_EQ(figures().allocated_bytes, 8 * kMiB);
  ASSERT_EQ(gpu.launch(stream, 0, [at] { *at += 1; }), CUDA_SUCCESS);
  ASSERT_TRUE(runtime->launches().end(holds));
  EXPECT_EQ(read(at), 2u);
}

TEST_P(UntrackedLaunches, ThatTakeLongLetOthersMoveWhatTheyDoNotName) {
  std::uint32_t* const at = allocate(8);
  fill(at, 1);
  gpu.synchronize(stream);
  holds.hold_separately = true;
  ASSERT_TRUE(runtime->launches().begin(std::array{reinterpret_cast<std::uintptr_t>(at)}, stream, false, holds));
  const CUstream other = gpu.create_stream(0);
  std::thread([&] {
    gpu.make_current(0);
    Rival rival(*this, other);
    for (int round = 0; round < 4; ++round) rival.use_all();
  }).join();
  EXPECT_GT(figures().evictions, 0u);
  EXPECT_EQ(in_hbm(at), 8 * kMiB);
  runtime->launches().abandon(holds);
  EXPECT_EQ(read(at), 1u);
  EXPECT_TRUE(runtime->close_stream(other));
}

// Launches continue while another thread begins to need more than HBM holds.
TEST_P(UntrackedLaunches, LoseNothingWhenTrackingBeginsBesideThem) {
  for (int round = 0; round < 8; ++round) {
    SCOPED_TRACE(::testing::Message() << "round " << round);
    std::uint32_t* const at = allocate(8);
    fill(at, 0);
    gpu.synchronize(stream);
    const CUstream other = gpu.create_stream(0);
    std::atomic<bool> over{false};
    std::thread rival([&] {
      gpu.make_current(0);
      for (int i = 0; i < round * 120; ++i) std::this_thread::yield();
      Rival(*this, other).use_all();
      over = true;
    });
    std::uint32_t launches = 0;
    while (!over || launches < 100) {
      launch({at}, [at] { *at += 1; });
      ++launches;
    }
    rival.join();
    EXPECT_EQ(read(at), launches);
    EXPECT_TRUE(runtime->close_stream(other));
    TearDown();
    runtime.reset();
    SetUp();
  }
}

INSTANTIATE_TEST_SUITE_P(Launches, UntrackedLaunches, ::testing::Bool(),
                         [](const auto& each) { return each.param ? "Unlooked" : "Looked"; });

struct UnlookedLaunches : UntrackedLaunches {
  bool passes(CUstream on) {
    // Afterwards the mover has finished a step since the last request.
    for (int i = 0; i < 2; ++i) (void)figures();
    const bool passed = runtime->launches().begin_if_all_resident(on, std::nullopt, holds);
    if (passed) runtime->launches().abandon(holds);
    return passed;
  }
  bool passes() { return passes(stream); }
};
INSTANTIATE_TEST_SUITE_P(Launches, UnlookedLaunches, ::testing::Values(true), [](const auto&) { return "Unlooked"; });

TEST_P(UnlookedLaunches, FindWhatWasAllocatedInHbm) {
  std::uint32_t* const large = allocate(8);
  auto small = runtime->blocks().allocate(512, 0, stream);
  ASSERT_TRUE(small);
  EXPECT_TRUE(passes());
  for (std::uint32_t* const at : {large, static_cast<std::uint32_t*>(*small)}) {
    EXPECT_EQ(in_hbm(large), 8 * kMiB);
    fill(at, 3);
    EXPECT_EQ(read(at), 3u);
  }
  EXPECT_EQ(figures().acquire_misses, 0u);
}

TEST_P(UnlookedLaunches, AreRefusedWhileSomethingIsNotMapped) {
  EXPECT_TRUE(passes());
  auto declared = runtime->allocations().allocate(8 * kMiB, 0, stream);
  ASSERT_TRUE(declared);
  EXPECT_FALSE(passes());
  ASSERT_TRUE(runtime->allocations().free(*declared, stream));
  EXPECT_TRUE(passes());
}

// Everything was resident when the first page had to be evicted.
TEST_P(UnlookedLaunches, AreRefusedOnceAPageIsToLeave) {
  std::uint32_t* const at = allocate(8);
  fill(at, 1);
  gpu.synchronize(stream);
  ASSERT_TRUE(passes());
  ASSERT_TRUE(runtime->requests().advise(at, 8 * kMiB, VMEM_ADVISE_EVICT));
  ASSERT_TRUE(runtime->requests().quiesce());
  EXPECT_FALSE(passes());
  EXPECT_EQ(read(at), 1u);
}

TEST_P(UnlookedLaunches, AreRefusedOnceHbmIsNearlyFull) {
  allocate(32);
  allocate(16);
  EXPECT_TRUE(passes());
  std::uint32_t* const beyond = allocate(16);
  EXPECT_EQ(in_hbm(beyond), 0u);
  EXPECT_FALSE(passes());
  fill(beyond, 1);
  EXPECT_EQ(read(beyond), 1u);
  EXPECT_FALSE(passes()) << "uses are tracked";
}

TEST_P(UnlookedLaunches, AreRefusedForAsLongAsATableMayHaveBeenFilled) {
  std::vector<std::uintptr_t> named;
  for (int i = 0; i < 2; ++i)
    named.push_back(reinterpret_cast<std::uintptr_t>(*runtime->blocks().allocate(512, 0, stream)));
  const auto look_at_one = [&](bool fills) {
    ASSERT_TRUE(runtime->launches().begin(named, stream, fills, holds));
    ASSERT_TRUE(runtime->launches().end(holds));
  };
  look_at_one(false);
  EXPECT_TRUE(passes());
  look_at_one(true);
  int looked_at = 0;
  named.resize(1);
  for (; !passes(); ++looked_at) look_at_one(false);
  // Until then, its pointers may have been copied to allocations named beside it.
  EXPECT_GE(looked_at, int(Options().window));
  EXPECT_LE(looked_at, 2 * int(Options().window) + 1);
}

TEST_P(UnlookedLaunches, AreRefusedOnADeviceThatCannotReachEverything) {
  TearDown();
  start({0, 1});
  const CUstream second = gpu.create_stream(1);
  allocate(8);
  EXPECT_TRUE(passes());
  EXPECT_FALSE(passes(second));
  auto of_second = runtime->blocks().allocate(8 * kMiB, 1, second);
  ASSERT_TRUE(of_second);
  EXPECT_FALSE(passes());
  EXPECT_FALSE(passes(second));
  EXPECT_TRUE(runtime->close_stream(second));
}

}  // namespace
}  // namespace vmem::test
