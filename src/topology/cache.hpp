// A topology, with its measured rates, in a file: measured once, read at every start.
#pragma once

#include <expected>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "gpu/driver.hpp"
#include "topology/topology.hpp"

namespace vmem::topology {

// What must be as it was when the file was written. A device that was moved, a new driver, another machine: measured anew.
struct MachineKey {
  std::string machine;               // host name and processor count
  std::string driver;                // its version, and the kernel module's
  std::vector<std::string> devices;  // by ordinal: bus id, UUID and name; an emulated machine's UUIDs hold its settings
  bool operator==(const MachineKey&) const = default;
};

// Errors: DRIVER.
Result<MachineKey> machine_key(const gpu::Driver& driver);

struct Saved {
  MachineKey key;
  std::string measured_at;  // "2026-01-31 12:00:00 UTC"
  Topology topology;
};

struct Miss {
  enum class Reason { absent, damaged, stale };
  Reason reason = Reason::absent;
  std::string message;  // names the file and what is wrong with it
};

std::expected<Saved, Miss> load_saved(const std::string& path, const MachineKey& key);
// Replaces the file as a whole or not at all, and makes its folder. Errors: INVALID_OPTION, naming the file and what failed.
Status save(const std::string& path, const Saved& saved);

// As in the file, for people and programs.
std::string to_json(const Saved& saved);

// Of the file that the option topology (Options::topology) means; "": none, since it is off, or there is no home folder.
std::string cache_path(const std::string& option, bool emulated);

}  // namespace vmem::topology
