// What somebody who waits until a node of a cluster has been emptied is to hear, look by look.
//
// Thread: one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cluster/node_list.hpp"

namespace vmem::runtime {

// Why the node's pages and copies may stay where they are. Who has them is not known to the
// registry: where others have room, this says what can be the matter.
std::string standstill(const std::vector<ClusterNode>& nodes, const ClusterNode& node);

class DrainWatch {
 public:
  static constexpr std::uint64_t kStillUs = 10'000'000;  // then it stands still

  // `words` say how far the node is. Nothing is said twice in a row.
  std::vector<std::string> saw(const std::vector<ClusterNode>& nodes, const std::optional<ClusterNode>& node,
                               const std::string& words, std::uint64_t now_us);
  // The registry did not answer, which stops no drain: programs know of it.
  std::vector<std::string> saw(const Error& away);

 private:
  std::string words_, reason_;
  std::uint64_t since_us_ = 0;  // of the words
  bool away_ = false;
};

}  // namespace vmem::runtime
