// A cluster of hosts with a registry, and what must hold at each moment:
//
// - No two live unfenced processes have one id, or hold one slice, and the registry names each of
//   them as the holder of what it holds. A stopped process counts: its clock goes on.
// - So a process is fenced before the registry ends its lease, whatever the clocks' drift.
// - Serials, and ids among them, are given out once.
// - A process has at most one record of a node, and no commit of a node is done after its end.
// - A node that another one sees go has no record, and never gets one again.
// - Slices that are taken at once are as many as asked for, and adjacent.
// - A change of a node's record is confirmed once the registry has the last one that was asked for.
// - Requests are answered by their deadline.
//
// And once faults have ended: each process is enrolled, with its last record, and the registry has
// no slice under its name that it does not hold.
#pragma once

#include <fmt/format.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster/simulator/enrolled_host.hpp"
#include "cluster/simulator/simulated_network.hpp"

namespace vmem::cluster::simulator {

struct WorldShape {
  std::uint32_t hosts = 5;
  std::uint32_t slices = 8;
  std::uint32_t lease_s = 6;
  std::uint64_t registry_timeout_us = 1'000'000;
  std::int64_t most_drift_ppm = 10'000;  // of each clock, to both sides
};

class EnrollmentWorld {
 public:
  EnrollmentWorld(std::uint64_t seed, const WorldShape& shape);

  void run_for(std::uint64_t us);
  // The first thing that was wrong; then nothing runs any more.
  const std::string& wrong() const noexcept { return wrong_; }

  EventQueue& queue() noexcept { return queue_; }
  SimulatedRegistry& registry() noexcept { return registry_; }
  SimulatedNetwork& network() noexcept { return network_; }
  std::vector<std::unique_ptr<EnrolledHost>>& hosts() noexcept { return hosts_; }
  const EnrollmentConfig& config() const noexcept { return config_; }
  std::uint64_t lease_us() const noexcept { return shape_.lease_s * std::uint64_t{1'000'000}; }
  // Tells every other host this one's revision, over the network.
  void gossip(Address from);

  // Ends all faults, and waits as long as the cluster may take to recover; then checks that every
  // process is enrolled, and that every view is that of the live nodes and their marks. Then each
  // takes one slice more and gives it back, after which no slice may be left over.
  void recover();

  // How often each happened, for tests that must not pass by doing nothing.
  struct Counts {
    std::uint64_t enrolled = 0, expelled = 0, fenced = 0, fences_ended = 0, left = 0, serials = 0, slices = 0,
                  timeouts = 0, gone = 0, rows = 0, changes = 0;  // rows: of two slices or more
    Counts& operator+=(const Counts& other);
  };
  const Counts& counts() const noexcept { return counts_; }

 private:
  EnrolledHost::Setup host_setup(std::mt19937_64& random, std::uint32_t host);
  void saw(std::uint32_t host, const EnrollmentEvent& event);
  void once(std::uint64_t serial);
  void check();
  void check_host(const EnrolledHost& host, std::set<NodeId>& ids, std::set<Slice>& slices);
  void check_records();
  const std::string& value_of(NodeId node);
  void check_waits(const EnrolledHost& host);
  void check_view(const EnrolledHost& host, const std::set<NodeId>& live);
  void check_change(EnrolledHost& host);
  template <class Call>
  void for_each_running(Call&& call);
  std::set<Slice> left_over(const EnrolledHost& host);
  void check_left_over();
  void wrong(const std::string& what);
  // Formats only what is wrong: this runs at each event.
  template <class... Values>
  void expect(bool right, fmt::format_string<Values...> what, Values&&... values) {
    if (!right) wrong(fmt::format(what, std::forward<Values>(values)...));
  }

  const WorldShape shape_;
  const EnrollmentConfig config_;
  EventQueue queue_;
  SimulatedRegistry registry_;
  SimulatedNetwork network_;
  std::vector<std::unique_ptr<EnrolledHost>> hosts_;
  std::set<std::uint64_t> serials_;  // given out
  std::set<NodeId> gone_;
  std::map<NodeId, std::string> slice_values_;
  Revision checked_{};  // at which check_records() found nothing
  Counts counts_;
  std::string wrong_;
};

}  // namespace vmem::cluster::simulator
