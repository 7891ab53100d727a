#include "cluster/single_node.hpp"

#include <fmt/format.h>

namespace vmem::cluster {

Status SingleNode::heard(const std::string& address, NodeIdentity node) {
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("node {}{}{} cannot take part: this node runs alone; give it peers",
                          static_cast<std::uint64_t>(node.id), address.empty() ? "" : " at ", address));
}

}  // namespace vmem::cluster
