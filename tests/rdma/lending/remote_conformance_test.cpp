// The remote tier as a tier, over the in-process fabric; each node has its own threads.
#include <algorithm>

#include "rdma/lending/remote_fixture.hpp"
#include "tiers/disk/disk_tier.hpp"
#include "tiers/hbm/hbm_tier.hpp"
#include "tiers/io/uring_queue.hpp"
#include "tiers/tier_conformance.hpp"
#include "tiers/tier_fixture.hpp"

namespace vmem::rdma {
namespace {

// Each node has its own threads.
template <std::size_t kLenders, std::uint32_t kReplicas, std::uint64_t kDiskPages = 0, std::uint64_t kHbmPages = 0>
class ThreadedRemote {
 public:
  ThreadedRemote() {
    for (std::uint64_t id = 1; id <= kLenders; ++id) {
      MemoryService::Config service{.workers = 1};
      if (kDiskPages != 0) {
        service.staging_bytes = 2 * kPage;
        disk_ = make_disk();
        service.disk = disk_.get();
      }
      if (kHbmPages != 0) {
        service.staging_bytes = 2 * kPage;
        hbm_ = make_hbm();
        service.hbm = hbm_.get();
      }
      const std::uint64_t memory = (kPages * kReplicas / kLenders - kDiskPages - kHbmPages) * kPage;
      lenders_.push_back(std::make_unique<Lender>(fabric_, clock_, NodeIdentity{NodeId{id}, Incarnation{1}}, service,
                                                  memory + service.staging_bytes, true));
    }
    RemoteTier::Config config;
    for (std::uint64_t id = 1; id <= kLenders; ++id) config.peers.push_back(node_address(id));
    NodeSetup setup{.self = {NodeId{100}, Incarnation{1}}, .make_transport = {}, .clock = &clock_, .times = {}};
    setup.make_transport = [&](Receiver& receiver) -> Result<std::unique_ptr<Transport>> {
      return fabric_.node(setup.self, receiver);
    };
    node_ = *Node::create(setup);
    config.replicas = kReplicas;
    tier_ = *RemoteTier::create(std::move(config), *node_);
    node_->start();
    const auto reached = tier_->wait_for_peers(20'000'000);
    EXPECT_TRUE(reached) << reached.error().message;
    for (auto& memory : memories_) memory = page_memory(kPage);
  }
  ~ThreadedRemote() {
    tier_.reset();
    node_.reset();
    lenders_.clear();
  }
  tiers::Tier& tier() { return *tier_; }
  static constexpr std::uint64_t kPages = 8;
  std::uint64_t budget_bytes() const { return kPages * kPage; }
  void wait_until_ready() {}
  void aim(tiers::Transfer& transfer, std::size_t i) {
    transfer.host = memories_[i].get();
    transfer.version = 1;
  }
  void fill(std::size_t i, unsigned char value) { std::memset(memories_[i].get(), value, kPage); }
  bool holds(std::size_t i, unsigned char value) {
    const auto* bytes = reinterpret_cast<unsigned char*>(memories_[i].get());
    return std::all_of(bytes, bytes + kPage, [&](unsigned char byte) { return byte == value; });
  }

 private:
  std::unique_ptr<tiers::DiskTier> make_disk() {
    tiers::DiskTier::Config config;
    config.directories.push_back({".", kDiskPages * kPage});
    config.make_queue = [](const std::vector<int>& files) -> Result<std::unique_ptr<tiers::IoQueue>> {
      return tiers::make_uring_queue({.files = files, .depth = 16});
    };
    config.on_ready = [] {};
    return *tiers::DiskTier::create(std::move(config));
  }
  std::unique_ptr<tiers::HbmTier> make_hbm() {
    machine_ = std::make_unique<tiers::TierMachine>("devices=1,hbm=64MiB,host=64MiB");
    return *tiers::HbmTier::create({.driver = machine_->driver, .bytes = kHbmPages * kPage, .on_ready = [] {}});
  }
  SteadyClock clock_;
  Fabric fabric_{clock_};
  std::unique_ptr<tiers::DiskTier> disk_;
  std::unique_ptr<tiers::TierMachine> machine_;
  std::unique_ptr<tiers::HbmTier> hbm_;
  std::vector<std::unique_ptr<Lender>> lenders_;
  PageMemory memories_[2];
  std::unique_ptr<Node> node_;
  std::unique_ptr<RemoteTier> tier_;
};

}  // namespace
}  // namespace vmem::rdma

namespace vmem::tiers {
using OneLender = rdma::ThreadedRemote<1, 1>;
using TwoLenders = rdma::ThreadedRemote<2, 1>;
using Replicas = rdma::ThreadedRemote<2, 2>;
using WithADisk = rdma::ThreadedRemote<1, 1, 7>;
using WithHbm = rdma::ThreadedRemote<1, 1, 0, 7>;
INSTANTIATE_TYPED_TEST_SUITE_P(RemoteOneLender, TierConformance, OneLender);
INSTANTIATE_TYPED_TEST_SUITE_P(RemoteTwoLenders, TierConformance, TwoLenders);
INSTANTIATE_TYPED_TEST_SUITE_P(RemoteReplicas, TierConformance, Replicas);
INSTANTIATE_TYPED_TEST_SUITE_P(RemoteDisk, TierConformance, WithADisk);
INSTANTIATE_TYPED_TEST_SUITE_P(RemoteHbm, TierConformance, WithHbm);
}  // namespace vmem::tiers
