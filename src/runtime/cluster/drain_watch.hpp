// The lines of `vmem node drain --wait` and `vmem node limit --wait`, which read the registry again
// and again.
//
// Thread: one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/cluster/node_list.hpp"
#include "runtime/cluster/region_list.hpp"

namespace vmem::runtime {

// Why a draining node may still hold pages and copies. The registry does not say whose they are, so
// where other nodes have room, this lists the causes that are left.
std::string standstill(const std::vector<ClusterNode>& nodes, const std::vector<ListedRegion>& regions,
                       const ClusterNode& node);

// Why the node's HBM may still hold more pages than its limit.
std::string limit_standstill(const ClusterNode& node);

class DrainWatch {
 public:
  static constexpr std::uint64_t kStillUs = 10'000'000;  // then it stands still

  // `words` say how far the node is, and `why` what may be in the way ("": nothing). Nothing is
  // said twice in a row.
  std::vector<std::string> saw(const std::string& words, const std::string& why, std::uint64_t now_us);
  // The registry did not answer, which stops nothing: programs and the daemon know of the order.
  std::vector<std::string> saw(const Error& away);

 private:
  std::string words_, reason_;
  std::uint64_t since_us_ = 0;  // of the words
  bool away_ = false;
};

}  // namespace vmem::runtime
