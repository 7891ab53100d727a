// A topology, with its measured rates, in a file: measured once, read at every start.
#pragma once

#include <expected>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "gpu/driver.hpp"
#include "topology/topology.hpp"

namespace vmem::topology {

// The state of the machine when the file was written. A moved device, a new driver or another
// machine makes the file stale.
struct MachineKey {
  std::string machine;  // host name and processor count
  std::string driver;   // versions of the driver and of its kernel module
  // by ordinal: bus id, UUID and name; UUIDs of an emulated machine hold its settings
  std::vector<std::string> devices;
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
  std::string message;  // names the file and the defect
};

std::expected<Saved, Miss> load_saved(const std::string& path, const MachineKey& key);
// Replaces the file atomically, and makes its folder. Errors: INVALID_OPTION, naming the file and
// the failure.
Status save(const std::string& path, const Saved& saved);

// The file's text, for people and programs.
std::string to_json(const Saved& saved);

// The file for the option topology (Options::topology). "": none, because the option is off or
// there is no home folder.
std::string cache_path(const std::string& option, bool emulated);

}  // namespace vmem::topology
