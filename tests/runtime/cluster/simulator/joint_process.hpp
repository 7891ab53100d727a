// A process of the simulation: what a daemon or a program has of published regions, the code that
// ships, on a faulty transport. Missing are the mover, whose place ProgramPages takes, and the
// threads: its owner turns it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>

#include "cluster/simulator/simulated_registry.hpp"
#include "rdma/transport/faulty.hpp"
#include "rdma/transport/in_process/in_process.hpp"
#include "runtime/cluster/joint_regions.hpp"
#include "runtime/cluster/page_shelf.hpp"
#include "runtime/cluster/simulator/program_pages.hpp"
#include "runtime/cluster/simulator/unreliable_pages.hpp"

namespace vmem::runtime::simulator {

// The host's, until the process ends: then all deadlines have passed.
class ProcessClock final : public Clock {
 public:
  explicit ProcessClock(const Clock& host) : host_(host) {}
  std::uint64_t now_us() const noexcept override { return host_.now_us() + ahead_us_; }
  void end() noexcept { ahead_us_ = std::uint64_t{1} << 60; }

 private:
  const Clock& host_;
  std::uint64_t ahead_us_ = 0;
};

class JointProcess {
 public:
  struct Setup {
    NodeIdentity self;  // on connections; never used before
    bool daemon = false;
    std::uint64_t seed = 0;
    const Clock& clock;  // of the host
    rdma::Fabric& fabric;
    cluster::simulator::SimulatedRegistry& registry;
    std::uint64_t registry_timeout_us = 0;
    const PageContents& contents;
    const MemoryFaults& memory_faults;
    ProgramPages::Setup pages;  // of a program; its clock and seed are the process's
    std::function<void(std::uint32_t first, std::uint32_t count)> range_freed;
  };
  static constexpr std::uint64_t kCopiesBytes = std::uint64_t{64} << 20;  // of a daemon

  explicit JointProcess(const Setup& setup);
  // As if it was killed. REQUIRES: nothing of it reaches other nodes any more.
  ~JointProcess();
  JointProcess(const JointProcess&) = delete;
  JointProcess& operator=(const JointProcess&) = delete;

  bool turn();  // whether it did anything
  NodeIdentity self() const { return node_->self(); }
  std::string address() const { return node_->transport().address(); }
  DirectoryService& service() { return joint_->directory(); }
  const DirectoryService& service() const { return joint_->directory(); }
  Fence& fence() { return fence_; }
  const Fence& fence() const { return fence_; }
  rdma::FaultyTransport& transport() { return *faulty_; }
  cluster::simulator::RegistryLink& link() { return *link_; }
  ProgramPages* pages() const { return pages_.get(); }  // null: a daemon
  bool has(cluster::directory::Serial serial, std::uint32_t page) const;
  // Pages that a daemon has memory for, without those of regions that have ended.
  std::uint64_t shelved() const { return shelf_ ? shelf_->usage().pages : 0; }
  sharing::SharedCounters fetched() const { return joint_->tier().statistics(); }
  // A daemon's copy that is not what was published; "": none was seen.
  const std::string& wrong() const { return wrong_; }

 private:
  void make_node(const Setup& setup);
  void make_joint(const Setup& setup);

  std::mt19937_64 random_;
  ProcessClock clock_;
  Fence fence_{clock_};
  const PageContents& contents_;
  rdma::FaultyTransport* faulty_ = nullptr;
  cluster::simulator::RegistryLink* link_ = nullptr;
  std::unique_ptr<rdma::Node> node_;
  std::unique_ptr<PageShelf> shelf_;     // of a daemon
  std::unique_ptr<ProgramPages> pages_;  // of a program
  std::unique_ptr<UnreliablePages> lent_;
  std::unique_ptr<JointRegions> joint_;
  mutable std::string wrong_;
};

}  // namespace vmem::runtime::simulator
