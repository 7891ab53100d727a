// A host of the simulation with at most one process, which is a member of the cluster by a real
// Enrollment. A crash loses everything but the clock. A stopped process makes no turns while its
// clock goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cluster/simulator/enrolled_host.hpp"
#include "cluster/simulator/observed_node.hpp"
#include "runtime/cluster/simulator/joint_process.hpp"

namespace vmem::runtime::simulator {

class JointHost final : public cluster::simulator::ObservedNode {
 public:
  using Serial = cluster::directory::Serial;
  struct Setup {
    cluster::simulator::EnrolledHost::Setup enrolled;
    std::uint64_t number = 0;  // from 1
    bool daemon = false;
    std::uint64_t patience_us = 0;  // of a program, for a page
    rdma::Fabric& fabric;
    const PageContents& contents;
    const MemoryFaults& memory_faults;
    std::function<void(JointHost&)> started;
    // The process has ended, and nothing that it sends is to arrive any more.
    std::function<void(NodeIdentity)> cut_off;
    std::function<void(std::uint64_t)> got_serial;
    std::function<void(std::uint32_t first)> range_freed;
    std::function<void(Serial, std::uint32_t page)> read_lost;
    // Before what is here is dropped. `lost`: as the call said.
    std::function<void(Serial, const cluster::directory::Runs& lost)> closed;
    // It may have taken pages with it: a process or its membership ended, or memory failed.
    std::function<void()> ended;
  };
  // Whether other nodes see a process end, as its kernel closes its connections, or its host goes
  // with it.
  enum class Death : std::uint8_t { seen, unseen };

  JointHost(cluster::simulator::SimulatedRegistry& registry, std::string name, std::uint64_t seed, Setup setup);

  void start();
  void crash(Death death);
  void stop();
  void go_on();
  bool turn();

  const std::string& name() const override { return enrolled_.name(); }
  bool is_daemon() const override { return setup_.daemon; }
  bool running() const override { return process_ != nullptr && enrolled_.running(); }
  bool is_member() const override;
  bool acts() const override { return is_member() && !enrolled_.stopped(); }
  // As the node's own thread knows it, which may be behind the enrollment.
  NodeId id() const override { return running() ? process_->service().self() : NodeId{}; }
  const cluster::directory::Directory& directory() const override { return process_->service().directory(); }
  bool has(Serial serial, std::uint32_t page) const override { return process_ && process_->has(serial, page); }
  bool has_lost(Serial serial, std::uint32_t page) const override;
  const char* overdue(std::uint64_t slack_us) const override;
  std::string wrong() const override;

  // REQUIRES: running()
  cluster::simulator::EnrolledHost& enrolled() { return enrolled_; }
  JointProcess& process() { return *process_; }
  ProgramPages& pages() { return *process_->pages(); }
  void lose(Serial serial, std::uint32_t page) {
    pages().lose(serial, page);
    setup_.ended();
  }
  bool is_waiting() const { return !process_->waits.empty() || (process_->pages() && !process_->pages()->is_idle()); }
  // Of a program, as its user's calls.
  void publish(DirectoryService::Publication what, std::uint64_t wait_us);
  void open(const std::string& name, std::uint64_t wait_us);
  void close(Serial serial, std::uint64_t wait_us);
  void remove(const std::string& name, std::uint64_t wait_us);
  void leave(std::uint64_t wait_us);

  struct Counts {
    std::uint64_t published = 0, incomplete = 0, refused = 0, opened = 0, unopened = 0, closed = 0, removed = 0,
                  left = 0, expelled = 0, read = 0, lost = 0, failed = 0, reused = 0, mismatches = 0, retries = 0;
    Counts& operator+=(const Counts& other);
  };
  Counts counts() const;

 private:
  struct Wait {
    std::uint64_t deadline_us = 0;
    const char* what = "";
  };
  struct Process : JointProcess {
    using JointProcess::JointProcess;
    std::map<std::uint64_t, Wait> waits;
    std::uint64_t last_wait = 0;
    cluster::NodeRecord record;
    cluster::Revision told{};
  };
  void end(Death death);
  std::string false_membership() const;
  static Counts counts_of(const Process& process);
  void describe(cluster::NodeRecord& record);
  void saw(const cluster::EnrollmentEvent& event);
  void ran();
  // A callback that ends a wait of this process. It is not called once the process has ended.
  template <class Value>
  DirectoryService::Done<Value> ends(const char* what, std::uint64_t wait_us, std::function<void(Value&)> then);

  cluster::simulator::SimulatedRegistry& registry_;
  const Setup setup_;
  std::mt19937_64 random_;
  cluster::simulator::EnrolledHost enrolled_;
  std::uint64_t runs_ = 0;
  bool behind_ = false, nodes_changed_ = false;
  std::shared_ptr<Process> process_;
  Counts counts_;
  std::string wrong_;
};

}  // namespace vmem::runtime::simulator
