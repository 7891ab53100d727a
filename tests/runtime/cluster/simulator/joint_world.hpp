// A cluster of hosts with the code of daemons and programs that shares published regions: nodes,
// connections, directories, shelves, tiers and page servers, over an in-process network and a
// registry with faults, in simulated time. DirectoryChecks says what must hold, and besides:
//
// - Bytes that are read, or that a daemon keeps, are those of region, version and page.
// - A page is LOST, at its home and for a reader, only if no member that takes part has it.
// - Who closes a region and was told of no loss leaves no page without a copy, unless others go,
//   or are stopped, at the same time, or a program was thought to have it.
// - After all faults nothing waits, and a daemon has memory for the pages only that it has promised
//   or cached.
//
// The same seed is the same run.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster/simulator/directory_checks.hpp"
#include "cluster/simulator/event_queue.hpp"
#include "cluster/simulator/simulated_registry.hpp"
#include "rdma/transport/in_process/in_process.hpp"
#include "runtime/cluster/simulator/joint_host.hpp"

namespace vmem::runtime::simulator {

struct JointShape {
  std::uint32_t daemons = 3, programs = 3;
  std::uint32_t lease_s = 6;
  std::uint32_t pages = 12;
  std::uint64_t patience_us = 8'000'000;  // of a program, for a page
  std::int64_t most_drift_ppm = 10'000;
};

class JointWorld {
 public:
  using Serial = cluster::directory::Serial;
  JointWorld(std::uint64_t seed, const JointShape& shape);
  ~JointWorld();
  JointWorld(const JointWorld&) = delete;
  JointWorld& operator=(const JointWorld&) = delete;

  void run_for(std::uint64_t us);
  // All hosts, and all pages of what each program has open: the first thing that is wrong.
  const std::string& wrong() const noexcept { return checks_.wrong(); }
  cluster::simulator::EventQueue& queue() noexcept { return queue_; }
  cluster::simulator::SimulatedRegistry& registry() noexcept { return registry_; }
  std::vector<std::unique_ptr<JointHost>>& hosts() noexcept { return hosts_; }
  std::uint64_t lease_us() const noexcept { return shape_.lease_s * std::uint64_t{1'000'000}; }
  std::uint32_t pages() const noexcept { return shape_.pages; }
  std::vector<Serial> open_at(std::uint32_t host) const { return checks_.open_at(*hosts_[host]); }

  // Publishes once the host has a serial. A quarter of the pages is FREE, and half of the others is
  // as in the version before.
  struct Plan {
    std::string name;
    std::uint32_t copies = 0;
    std::uint64_t expires_s = 0;
    std::uint64_t wait_us = 8'000'000;
  };
  void publish(std::uint32_t host, Plan plan);

  // Of all messages that are sent from now on, and of all memory.
  void set_faults(const rdma::Faults& faults);
  MemoryFaults memory_faults;
  // One way, from the one host to the other.
  void set_cut(std::uint32_t from, std::uint32_t to, bool cut);

  // Ends all faults, starts all hosts, waits, has everything read, and checks the end state.
  void recover();

  struct Counts {
    JointHost::Counts hosts;
    std::uint64_t lost = 0, freed = 0, takeovers = 0;
    Counts& operator+=(const Counts& other);
  };
  Counts counts() const;
  // Differs, most likely, between two runs that differ.
  std::string digest() const;

 private:
  using Pages = std::set<std::pair<Serial, std::uint32_t>>;
  JointHost::Setup host_setup(std::uint32_t host);
  void started(JointHost& host);
  void cut_off(NodeIdentity ended);
  void got_serial(std::uint32_t host, std::uint64_t serial);
  void read_lost(std::uint32_t host, Serial serial, std::uint32_t page);
  void closed(std::uint32_t host, Serial serial, const cluster::directory::Runs& lost);
  bool turn();
  void check();
  void check_losses();
  void close_removed();
  void end_faults();
  void read_all();
  void check_end();

  const JointShape shape_;
  std::mt19937_64 random_;
  cluster::simulator::EventQueue queue_;
  cluster::simulator::SimulatedRegistry registry_;
  rdma::Fabric fabric_{queue_};
  rdma::Faults faults_;
  PageContents contents_;
  cluster::simulator::DirectoryChecks checks_;
  std::vector<std::unique_ptr<JointHost>> hosts_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> cuts_;
  std::map<std::uint32_t, std::vector<Plan>> plans_;     // that wait for a serial
  std::map<std::string, Serial> names_;                  // of the last publication
  std::map<std::uint32_t, Serial> granules_;             // by first granule
  std::set<std::pair<std::uint32_t, Serial>> to_close_;  // removed regions that hosts have open
  Pages lost_, ever_lost_;                               // as homes say now, and said at some time
  std::uint32_t next_granule_ = 1;
  std::uint64_t checked_us_ = 0;
  std::uint64_t ended_us_ = 0;  // when something went last that may have had pages
};

}  // namespace vmem::runtime::simulator
