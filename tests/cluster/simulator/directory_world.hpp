// A cluster of hosts with directories. DirectoryChecks says what must hold, and besides:
//
// - Bytes are those of the region and page.
// - What a page is answered to be is what was published.
// - Another tenant opens no region.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cluster/simulator/directory_checks.hpp"
#include "cluster/simulator/directory_host.hpp"

namespace vmem::cluster::simulator {

struct DirectoryShape {
  std::uint32_t daemons = 4, programs = 4;
  std::uint32_t lease_s = 6;
  std::uint32_t pages = 16;
  std::uint64_t registry_timeout_us = 1'000'000;
  std::int64_t most_drift_ppm = 10'000;
  bool stranger = false;  // the last program belongs to another tenant
};

class DirectoryWorld {
 public:
  DirectoryWorld(std::uint64_t seed, const DirectoryShape& shape);

  void run_for(std::uint64_t us);
  const std::string& wrong() const noexcept { return checks_.wrong(); }
  EventQueue& queue() noexcept { return queue_; }
  SimulatedRegistry& registry() noexcept { return registry_; }
  SimulatedNetwork& network() noexcept { return network_; }
  std::vector<std::unique_ptr<DirectoryHost>>& hosts() noexcept { return hosts_; }
  std::uint64_t lease_us() const noexcept { return shape_.lease_s * std::uint64_t{1'000'000}; }
  std::mt19937_64& random() noexcept { return random_; }

  // Publishes once the host has a serial; a quarter of the pages is FREE.
  struct Plan {
    std::string name;
    std::uint32_t copies = 0;
    std::uint64_t expires_s = 0;
    std::uint64_t wait_us = 8'000'000;
  };
  void publish(std::uint32_t host, Plan plan);
  void open(std::uint32_t host, const std::string& name, std::uint64_t wait_us);
  void close(std::uint32_t host, directory::Serial serial, std::uint64_t wait_us);
  void remove(std::uint32_t host, const std::string& name, std::uint64_t wait_us);
  void leave(std::uint32_t host, std::uint64_t wait_us);
  // The regions that the host has open, and where pages can be read.
  std::vector<directory::Serial> open_at(std::uint32_t host) const { return checks_.open_at(*hosts_[host]); }
  bool is_open_at(std::uint32_t host, directory::Serial serial) const {
    return hosts_[host]->open_part(serial) != nullptr;
  }
  bool is_written(directory::Serial serial, std::uint32_t page) const { return checks_.is_written(serial, page); }
  // Whether publication has completed with all its copies.
  bool is_complete(directory::Serial serial) const { return complete_.contains(serial); }
  const std::map<std::string, directory::Serial>& complete_names() const noexcept { return complete_names_; }

  // Ends all faults, starts all hosts, waits, and checks the end state.
  void recover();
  // Every host reads all pages of what it has open.
  void read_all();

  struct Counts {
    std::uint64_t published = 0, incomplete = 0, given_up = 0, refused = 0, opened = 0, wants = 0, timeouts = 0,
                  kept = 0, released = 0, lost = 0, removed = 0, removed_well = 0, freed = 0, closed = 0, left = 0,
                  takeovers = 0, expelled = 0, read = 0, refused_bytes = 0;
    Counts& operator+=(const Counts& other);
  };
  Counts counts() const;

 private:
  DirectoryHost::Setup host_setup(std::uint32_t host);
  directory::KnownNode known(NodeId id, const NodeRecord& record) const;
  void got_serial(std::uint32_t host, std::uint64_t serial);
  void saw(std::uint32_t host, const directory::DirectoryEvent& event);
  void close_removed(std::uint32_t host, NodeId id, directory::Serial serial);
  const DirectoryShape shape_;
  std::mt19937_64 random_;
  EventQueue queue_;
  SimulatedRegistry registry_;
  SimulatedNetwork network_;
  DirectoryChecks checks_;
  std::vector<std::unique_ptr<DirectoryHost>> hosts_;
  std::map<std::uint32_t, std::vector<Plan>> plans_;  // that wait for a serial
  std::map<Ticket, directory::Serial> publishing_;
  std::set<directory::Serial> complete_;
  std::map<std::string, directory::Serial> complete_names_;
  std::uint64_t next_granule_ = 0;
  Counts counts_;
};

}  // namespace vmem::cluster::simulator
