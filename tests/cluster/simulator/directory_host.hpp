// A host of the simulation whose process has an Enrollment, a Directory and a data plane that moves
// bytes: it fetches what the directory names, serves others, and keeps what it promised.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cluster/directory/directory.hpp"
#include "cluster/simulator/enrolled_host.hpp"
#include "cluster/simulator/observed_node.hpp"
#include "cluster/simulator/simulated_network.hpp"

namespace vmem::cluster::simulator {

// What a page of a region has to contain.
std::uint64_t bytes_of(directory::Serial serial, std::uint32_t page);

class DirectoryHost final : public ObservedNode {
 public:
  struct Setup {
    EnrolledHost::Setup enrolled;
    directory::DirectoryConfig config;
    std::string tenant = "t";
    Address address = 0;
    bool daemon = false;
    std::function<std::optional<Address>(NodeId)> address_of;
    std::function<std::string(NodeId)> tenant_of;
    std::function<directory::KnownNode(NodeId, const NodeRecord&)> known;
    std::function<void(std::uint64_t)> got_serial;
    std::function<void(const directory::DirectoryEvent&)> saw;
  };
  DirectoryHost(SimulatedRegistry& registry, SimulatedNetwork& network, std::string name, std::uint64_t seed,
                Setup setup);

  void start();
  void crash();
  void stop() { enrolled_.stop(); }
  void go_on();
  const std::string& name() const override { return name_; }
  bool acts() const override;
  bool running() const noexcept override { return process_ != nullptr && enrolled_.running(); }
  bool is_member() const override;

  EnrolledHost& enrolled() noexcept { return enrolled_; }
  const EnrolledHost& enrolled() const noexcept { return enrolled_; }
  // REQUIRES: running()
  directory::Directory& directory() { return process_->directory; }
  const directory::Directory& directory() const override { return process_->directory; }
  RegistryLink& link() { return process_->link; }
  void wake();  // after each use of directory()
  NodeId id() const override { return enrolled_.running() ? enrolled_.enrollment().id() : NodeId{}; }
  bool is_daemon() const noexcept override { return setup_.daemon; }

  // Each ticket that waits, with the time by which it has to end.
  void waits_for(Ticket ticket, std::uint64_t wait_us, const char* what);
  bool is_waiting() const noexcept { return !process_->waits.empty(); }
  const char* overdue(std::uint64_t slack_us) const override;
  // Reads a page, from here or from wherever the directory says.
  void read(directory::Serial serial, std::uint32_t page, std::uint64_t wait_us);
  void put(directory::Serial serial, std::uint32_t page);  // before it is published
  // A program drops what it has cached without a word.
  void evict(directory::Serial serial, std::uint32_t page);
  // A disk or a lender of this node has lost a page that it keeps, and the node finds it out.
  void lose(directory::Serial serial, std::uint32_t page);
  bool has_lost(directory::Serial serial, std::uint32_t page) const override;
  bool has(directory::Serial serial, std::uint32_t page) const override;

  struct Counts {
    std::uint64_t served = 0, read = 0, free = 0, lost = 0, late = 0, kept = 0, refused = 0;
  };
  Counts counts;
  std::string wrong() const override { return wrong_ + enrolled_.wrong(); }

 private:
  struct Job {  // fetches one page
    directory::Serial serial{};
    std::uint32_t page = 0;
    directory::Fetch fetch{};
    std::vector<NodeId> sources;
    std::size_t next = 0;    // source
    std::uint64_t keep = 0;  // number of the KeepWanted that it is for; 0: it is read
    std::uint64_t deadline_us = 0;
    // The directory knows that the bytes are here. A program's mover does not yet.
    bool landed = false;
  };
  struct Keeping {
    directory::KeepWanted wanted;
    std::set<std::uint64_t> jobs;
  };
  struct Asked {  // by another node, for a page that is on its way to here
    NodeId node{};
    std::uint64_t job = 0;
  };
  struct Reading {
    directory::Serial serial{};
    std::uint32_t page = 0;
    std::uint64_t deadline_us = 0;
  };
  struct Wait {
    std::uint64_t deadline_us = 0;
    const char* what = "";
  };
  using Page = std::pair<directory::Serial, std::uint32_t>;
  struct Process {
    Process(DirectoryHost& host, std::uint64_t seed);
    RegistryLink link;
    std::mt19937_64 random;
    directory::Directory directory;
    NodeId self{};
    std::uint64_t due = 0;
    bool woken = false;
    std::map<Ticket, Wait> waits;
    std::map<Page, std::uint64_t> data;
    std::set<Page> lost;
    std::map<Ticket, Reading> readings;
    std::map<std::uint64_t, Job> jobs;
    std::map<std::uint64_t, Keeping> keeping;
    std::map<Page, std::vector<Asked>> asked;
    std::set<Page> gone;  // as the mover has found out, and the directory does not know yet
    std::uint64_t last_job = 0, last_keep = 0;
  };
  void enrollment_event(const EnrollmentEvent& event);
  void run();
  void post_due();
  void take_outputs();
  void take(const directory::DirectoryEvent& event);
  void on(const directory::Answered& answered);
  void on(const directory::WantEnded& ended);
  void on(const directory::KeepWanted& wanted);
  void on(const directory::CloseEnded& ended);
  void on(const directory::PartEnded& ended) { forget(ended.serial); }
  template <class Other>
  void on(const Other& other);
  void ended(Ticket ticket);
  void forget(directory::Serial serial);
  void start_job(Job job);
  void ask_next(std::uint64_t number);
  void finish_job(std::uint64_t number, bool got);
  void receive(Address from, const std::string& message);
  void serve(NodeId from, directory::Serial serial, std::uint32_t page, std::uint64_t job);
  void got(std::uint64_t job, NodeId from, bool has, std::uint64_t bytes);
  void take(std::uint64_t job);
  void say_gone(const Page& page);
  // On the mover's thread, a short time later.
  void later(std::function<void()> what);
  void send(NodeId to, char kind, const std::string& rest);
  void expect(bool right, const std::string& what);

  SimulatedRegistry& registry_;
  SimulatedNetwork& network_;
  const std::string name_;
  const Setup setup_;
  std::mt19937_64 random_;
  EnrolledHost enrolled_;
  std::shared_ptr<Process> process_;
  std::string wrong_;
};

}  // namespace vmem::cluster::simulator
