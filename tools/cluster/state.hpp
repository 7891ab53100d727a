// What the file of a local cluster says of it: where it is, and which processes are its own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/process_id.hpp"
#include "tools/cluster/folder.hpp"

namespace vmem::tools::local_cluster {

inline constexpr const char* kStateFile = "state.json";
inline constexpr const char* kEtcdName = "etcd";  // of its process, and of the folder with its data
inline constexpr std::uint32_t kMostNodes = 16;

struct ManagedProcess {
  std::string name;  // "etcd", "n1"
  ProcessId id;
  std::vector<std::string> command;
  bool operator==(const ManagedProcess&) const = default;
};

struct State {
  std::string boot;     // of the host, when the processes were started
  std::string address;  // of the cluster, as programs name it
  std::uint16_t client_port = 0, peer_port = 0;
  std::uint32_t nodes = 0;
  std::uint64_t memory_bytes = 0;  // that each node lends
  bool made_folder = false;        // the folder was not there before
  bool started = false;            // all of it: false while `up` works, or after it was killed
  std::vector<ManagedProcess> processes;
  bool operator==(const State&) const = default;
};

inline std::string log_of(const std::string& name) { return name + ".log"; }
std::string node_name(std::uint32_t number);  // "n1"
// Names in the folder of a cluster of so many nodes: etcd's data and all logs, without the state.
std::vector<std::string> own_files(std::uint32_t nodes);

std::string text_of(const State& state);
// `path` is for errors. Errors: INVALID_OPTION for a file that is damaged or of a newer version.
Result<State> parse_state(const std::string& path, const std::string& text);

// None if the folder has no state. Errors: those of the folder and of parse_state().
Result<std::optional<State>> read_state(const Folder& folder);
Status write_state(const Folder& folder, const State& state);

// Whether it is of this boot and the process lives.
bool lives(const State& state, const ManagedProcess& process);

}  // namespace vmem::tools::local_cluster
