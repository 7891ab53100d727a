// A host of the simulation with at most one process, whose Enrollment is driven as an owner has to:
// when replies came, and when it is due. A crash loses everything but the clock. A stopped process
// makes no steps while its clock goes on.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cluster/enrollment/enrollment.hpp"
#include "cluster/simulator/simulated_registry.hpp"

namespace vmem::cluster::simulator {

class EnrolledHost {
 public:
  struct Setup {
    std::int64_t drift_ppm = 0;
    std::uint64_t clock_began_us = 1;
    std::uint64_t registry_timeout_us = 1'000'000;
    ClusterParameters parameters;
    EnrollmentConfig config;
    std::function<void(NodeRecord&)> describe;        // completes the record of a process
    std::function<void(const EnrollmentEvent&)> saw;  // each event, after the step that made it
    std::function<void()> ran;                        // after its steps and events
  };

  EnrolledHost(SimulatedRegistry& registry, std::string name, std::uint64_t seed, Setup setup);

  void start();  // a process, if there is none
  void crash();
  void stop() { stopped_ = behind_ = true; }
  void go_on();

  bool running() const noexcept { return process_ != nullptr; }  // or stopped
  bool stopped() const noexcept { return stopped_; }
  bool behind() const noexcept { return behind_; }  // stopped, or not run since
  const Clock& clock() const noexcept { return clock_; }
  const std::string& name() const noexcept { return name_; }
  // REQUIRES: running()
  Enrollment& enrollment() { return process_->enrollment; }
  const Enrollment& enrollment() const { return process_->enrollment; }
  RegistryLink& link() { return process_->link; }
  // Call after each use of enrollment() that asks for something.
  void wake();

  // Tickets without an answer, with the clock's time at which each was asked for.
  const std::map<Ticket, std::uint64_t>& waits() const noexcept { return process_->waits; }
  void waits_for(Ticket ticket) { process_->waits.emplace(ticket, clock_.now_us()); }
  // Asks for adjacent slices; the answer is checked.
  void take_slices(std::uint32_t count);
  // Changes the record, to one that names this memory, unless the process leaves.
  void change_record(std::uint64_t memory);
  // What the record has to say in the end; and whether that was not confirmed yet.
  std::uint64_t memory() const noexcept { return process_->memory; }
  bool changing() const noexcept { return process_->change.has_value(); }
  // Slices that an expulsion took, with the id that had them.
  const std::map<Slice, NodeId>& former() const noexcept { return process_->former; }
  // The first thing that was wrong.
  const std::string& wrong() const noexcept { return wrong_; }

 private:
  struct Process {
    Process(EnrolledHost& host, SimulatedRegistry& registry, std::uint64_t seed);
    RegistryLink link;
    Enrollment enrollment;
    std::uint64_t due = 0;  // number of the latest event that was posted for when it is due
    bool woken = false;
    std::map<Ticket, std::uint64_t> waits;
    std::map<Slice, NodeId> former;
    std::map<Ticket, std::uint32_t> counts;  // of slices asked for
    std::set<NodeId> seen;                   // as told by events
    std::uint64_t memory = 0;                // of the record that was asked for last
    std::optional<Ticket> change;
  };
  NodeRecord record() const;
  void run();
  void post_due();
  void take_events();
  void take_event(const EnrollmentEvent& event);
  void answered(Ticket ticket, const std::optional<Error>& error);
  void took(const SlicesTaken& taken);
  void expect(bool right, std::string what);

  SimulatedRegistry& registry_;
  const std::string name_;
  const Setup setup_;
  test::DriftingClock clock_;
  std::mt19937_64 random_;
  std::uint64_t runs_ = 0;
  bool stopped_ = false, behind_ = false;
  std::shared_ptr<Process> process_;
  std::string wrong_;
};

}  // namespace vmem::cluster::simulator
