// What is there of a local cluster: which processes live, and what its registry lists.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cluster/node_list.hpp"
#include "tools/cluster/state.hpp"

namespace vmem::tools::local_cluster {

// Whether the member is this daemon: it has the daemon's pid, and the label that `up` gave it.
bool is_node_of(const runtime::ClusterNode& node, const ManagedProcess& process);

struct Survey {
  struct Entry {
    ManagedProcess process;
    bool lives = false;
    std::optional<runtime::ClusterNode> node;  // as the registry lists it; none for etcd
  };
  State state;
  std::vector<Entry> entries;
  std::vector<runtime::ClusterNode> others;  // members that `up` did not start, such as programs
  std::string registry_error;                // "": it answered

  // Everything that `up` started lives and is a member.
  bool whole() const;
  // Memory that living daemons lend.
  std::uint64_t lent_bytes() const;
};

Survey survey(const State& state);
// Lines, each with its end.
std::string text_of(const Survey& survey);
nlohmann::json json_of(const Survey& survey);

}  // namespace vmem::tools::local_cluster
