#include "tiers/near_tier.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <numeric>
#include <semaphore>
#include <string>

#include "gpu/memory_location.hpp"
#include "tiers/tier_conformance.hpp"
#include "tiers/tier_fixture.hpp"

namespace vmem::tiers {
namespace {

constexpr std::uint64_t kBudget = 8 * kTierPage;

// Pages of device 0.
enum class Memory : std::uint8_t { host, peer, peer_that_copies };

template <Memory kMemory>
class NearUnderTest {
 public:
  explicit NearUnderTest(bool peer_may_access_frames = true) : hbm_(hbm_config(peer_may_access_frames)) {
    NearTier::Config config;
    config.driver = machine_.driver;
    config.devices = {{machine_.context.context(), 0}};
    if (kMemory != Memory::host) config.location = gpu::on_device(1);
    if (kMemory == Memory::peer_that_copies) config.devices[0].copier = peer_.context();
    config.budget_bytes = kBudget;
    config.on_ready = [this] {
      const std::lock_guard lock(mutex_);
      ++ready_;
      changed_.notify_all();
    };
    tier_ = std::move(*NearTier::create(std::move(config)));
    for (auto& frame : frames_) frame = hbm_.frame(**hbm_.take(kTierPage)).window;
  }
  Tier& tier() { return *tier_; }
  InPlaceTier& in_place() { return *tier_; }
  std::uint64_t budget_bytes() const { return kBudget; }
  void wait_until_ready() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ready_ != seen_; });
    seen_ = ready_;
  }
  CUdeviceptr frame(std::size_t i) const { return frames_[i]; }
  void aim(Transfer& transfer, std::size_t i) const { transfer.frame = frames_[i]; }
  void fill(std::size_t i, unsigned char value) {
    ASSERT_EQ((*machine_.driver)->cuMemsetD8Async(frames_[i], value, kTierPage, nullptr), CUDA_SUCCESS);
    ASSERT_EQ((*machine_.driver)->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  }
  void fill_byte(std::size_t i, std::uint64_t at, unsigned char value) {
    ASSERT_EQ((*machine_.driver)->cuMemsetD8Async(frames_[i] + at, value, 1, nullptr), CUDA_SUCCESS);
    ASSERT_EQ((*machine_.driver)->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  }
  bool holds(std::size_t i, unsigned char value) {
    std::vector<unsigned char> bytes(kTierPage);
    EXPECT_EQ((*machine_.driver)->cuMemcpyDtoHAsync(bytes.data(), frames_[i], kTierPage, nullptr), CUDA_SUCCESS);
    EXPECT_EQ((*machine_.driver)->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
    return std::all_of(bytes.begin(), bytes.end(), [&](unsigned char byte) { return byte == value; });
  }

 private:
  FramePool::Config hbm_config(bool peer_may_access_frames) {
    FramePool::Config config;
    config.driver = machine_.driver;
    config.location = gpu::on_device(0);
    config.accessors = {config.location};
    if (peer_may_access_frames) config.accessors.push_back(gpu::on_device(1));
    config.budget_bytes = 4 * kTierPage;
    config.name = "HBM";
    return config;
  }
  TierMachine machine_{"devices=2,hbm=64MiB,host=64MiB"};
  gpu::PrimaryContext peer_{*gpu::PrimaryContext::retain(machine_.driver, 1)};
  FramePool hbm_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int ready_ = 0, seen_ = 0;
  std::unique_ptr<NearTier> tier_;
  CUdeviceptr frames_[2] = {};
};

using HostUnderTest = NearUnderTest<Memory::host>;
using PeerUnderTest = NearUnderTest<Memory::peer>;
using CopyingPeerUnderTest = NearUnderTest<Memory::peer_that_copies>;

INSTANTIATE_TYPED_TEST_SUITE_P(Host, TierConformance, HostUnderTest);
INSTANTIATE_TYPED_TEST_SUITE_P(Host, StreamOrderedTierConformance, HostUnderTest);
INSTANTIATE_TYPED_TEST_SUITE_P(Peer, TierConformance, PeerUnderTest);
INSTANTIATE_TYPED_TEST_SUITE_P(Peer, StreamOrderedTierConformance, PeerUnderTest);
INSTANTIATE_TYPED_TEST_SUITE_P(CopyingPeer, TierConformance, CopyingPeerUnderTest);
INSTANTIATE_TYPED_TEST_SUITE_P(CopyingPeer, StreamOrderedTierConformance, CopyingPeerUnderTest);

template <class Tested>
SlotGrant granted_slot(Tested& t) {
  SlotGrant grant = *t.tier().allocate(kTierPage);
  while (grant.grant == Grant::later) {
    t.wait_until_ready();
    grant = *t.tier().allocate(kTierPage);
  }
  return grant;
}

// The driver checks who copies: the frame's own GPU could.
TEST(NearTier, ACopyingPeersEnginesNeedAccessToFrames) {
  const auto store = [](auto& t) {
    Transfer transfer;
    transfer.slot = granted_slot(t).slot;
    transfer.bytes = kTierPage;
    transfer.direction = Direction::store;
    t.aim(transfer, 0);
    return t.tier().submit({&transfer, 1});
  };
  CopyingPeerUnderTest copying(false);
  EXPECT_FALSE(store(copying));
  PeerUnderTest copied(false);
  EXPECT_TRUE(store(copied));
}

// Copies that make way are queued in pieces with a pause between them.
TEST(NearTier, TheDirectionThatMakesWayIsCopiedInPieces) {
  constexpr std::uint64_t kLargePage = std::uint64_t{32} << 20;
  TierMachine machine("devices=1,hbm=128MiB,host=256MiB");
  gpu::FaultInjector counted(machine.driver);
  std::map<std::string, int, std::less<>> calls;
  counted.on_call([&](std::string_view call) { ++calls[std::string(call)]; });
  auto tier = *NearTier::create({.driver = counted.driver(),
                                 .devices = {{machine.context.context(), 0}},
                                 .budget_bytes = kLargePage,
                                 .growth = NearTier::Growth::by_owner});
  SlotGrant grant = *tier->allocate(kLargePage);
  ASSERT_TRUE(tier->grow_one());
  grant = *tier->allocate(kLargePage);
  ASSERT_EQ(grant.grant, Grant::granted);
  const auto frame = *gpu::DeviceMemory::create(machine.driver, kLargePage);
  const auto copies = [&](Direction direction) {
    calls.clear();
    Transfer transfer;
    transfer.slot = grant.slot;
    transfer.frame = frame.get();
    transfer.bytes = kLargePage;
    transfer.direction = direction;
    EXPECT_TRUE(tier->submit({&transfer, 1}));
    std::vector<Completion> ended;
    while (ended.empty()) EXPECT_TRUE(tier->poll(ended));
    return calls[direction == Direction::load ? "cuMemcpyHtoDAsync" : "cuMemcpyDtoHAsync"];
  };
  EXPECT_EQ(copies(Direction::store), 4);
  EXPECT_EQ(calls["cuMemsetD32Async"], 3);
  EXPECT_EQ(copies(Direction::load), 1);
  tier->make_way(0, Direction::load);
  EXPECT_EQ(copies(Direction::store), 1);
  EXPECT_EQ(calls["cuMemsetD32Async"], 0);
  EXPECT_EQ(copies(Direction::load), 4);
  EXPECT_GE(calls["cuMemsetD32Async"], 3);
}

// Of a page of which a part was written the rest stays as it is in the slot.
TEST(NearTier, AStoreIfChangedCopiesThePiecesThatChanged) {
  constexpr std::uint64_t kPiece = std::uint64_t{64} << 10;
  HostUnderTest t;
  const SlotGrant grant = granted_slot(t);
  const auto move = [&](Direction direction, std::size_t frame) {
    Transfer transfer;
    transfer.slot = grant.slot;
    transfer.bytes = kTierPage;
    transfer.direction = direction;
    transfer.watch = direction == Direction::load;
    transfer.if_changed = direction == Direction::store;
    t.aim(transfer, frame);
    EXPECT_TRUE(t.tier().submit({&transfer, 1}));
    std::vector<Completion> ended;
    while (ended.empty()) EXPECT_TRUE(t.tier().poll(ended));
    return ended.front();
  };
  t.fill(0, 0x11);
  move(Direction::store, 0);
  move(Direction::load, 1);
  for (const std::uint64_t at : {std::uint64_t{0}, 5 * kPiece + 77, kTierPage - 1}) {
    t.fill_byte(1, at, 0x33);
    const Completion stored = move(Direction::store, 1);
    EXPECT_TRUE(stored.changed) << at;
    EXPECT_EQ(stored.changed_bytes, kPiece) << at;
    EXPECT_EQ(move(Direction::store, 1).changed_bytes, 0u) << at;
  }
  const std::byte* const bytes = t.in_place().host_address(grant.slot, pagetable::Access::read);
  EXPECT_EQ(std::count(bytes, bytes + kTierPage, std::byte{0x33}), 3);
  EXPECT_EQ(std::count(bytes, bytes + kTierPage, std::byte{0x11}), std::ptrdiff_t(kTierPage) - 3);
}

TEST(NearTier, SlotsAreReadAndWrittenByTheCpu) {
  HostUnderTest t;
  const SlotGrant grant = granted_slot(t);
  ASSERT_EQ(grant.grant, Grant::granted);
  std::memset(t.in_place().host_address(grant.slot, pagetable::Access::write), 0x5a, kTierPage);
  Transfer load;
  load.slot = grant.slot;
  load.frame = t.frame(0);
  load.bytes = kTierPage;
  ASSERT_TRUE(t.tier().submit({&load, 1}));
  std::vector<Completion> completions;
  while (completions.empty()) ASSERT_TRUE(t.tier().poll(completions));
  EXPECT_TRUE(t.holds(0, 0x5a));
}

TEST(NearTier, AnOwnerThatCreatesSlotsItselfGetsThemWhenItCreatesThem) {
  TierMachine machine("devices=1,hbm=64MiB,host=64MiB");
  auto tier = *NearTier::create({.driver = machine.driver,
                                 .devices = {{machine.context.context(), 0}},
                                 .budget_bytes = 2 * kTierPage,
                                 .on_ready = [] { FAIL() << "the owner knows"; },
                                 .growth = NearTier::Growth::by_owner});
  EXPECT_FALSE(tier->grow_one()) << "nothing is wanted";
  EXPECT_EQ(tier->allocate(kTierPage)->grant, Grant::later);
  EXPECT_TRUE(tier->grow_one());
  EXPECT_FALSE(tier->grow_one());
  EXPECT_EQ(tier->allocate(kTierPage)->grant, Grant::granted);
  tier->expect(kTierPage, 5);
  EXPECT_TRUE(tier->grow_one());
  EXPECT_FALSE(tier->grow_one()) << "the budget is used up";
}

// The page is larger than the pieces of a store.
TEST(NearTier, LargePagesAreStoredWhole) {
  constexpr std::uint64_t kLargePage = std::uint64_t{64} << 20;
  TierMachine machine("devices=1,hbm=128MiB,host=256MiB");
  std::binary_semaphore ready(0);
  auto tier = *NearTier::create({.driver = machine.driver,
                                 .devices = {{machine.context.context(), 0}},
                                 .budget_bytes = kLargePage,
                                 .on_ready = [&] { ready.release(); }});
  SlotGrant grant = *tier->allocate(kLargePage);
  if (grant.grant == Grant::later) {
    ready.acquire();
    grant = *tier->allocate(kLargePage);
  }
  ASSERT_EQ(grant.grant, Grant::granted);
  std::vector<std::uint64_t> words(kLargePage / sizeof(std::uint64_t));
  std::iota(words.begin(), words.end(), std::uint64_t{1});
  const auto frame = *gpu::DeviceMemory::create(machine.driver, kLargePage);
  ASSERT_EQ((*machine.driver)->cuMemcpyHtoDAsync(frame.get(), words.data(), kLargePage, nullptr), CUDA_SUCCESS);
  ASSERT_EQ((*machine.driver)->cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  Transfer store;
  store.slot = grant.slot;
  store.frame = frame.get();
  store.bytes = kLargePage;
  store.direction = Direction::store;
  ASSERT_TRUE(tier->submit({&store, 1}));
  std::vector<Completion> completions;
  while (completions.empty()) ASSERT_TRUE(tier->poll(completions));
  EXPECT_EQ(completions.front().outcome, Outcome::done);
  EXPECT_EQ(std::memcmp(tier->host_address(grant.slot, pagetable::Access::read), words.data(), kLargePage), 0);
}

}  // namespace
}  // namespace vmem::tiers
