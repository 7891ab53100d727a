// A membership by a list. All nodes are given the same one; epochs advance when somebody gives them another. There is no lease:
// a node that is cut off is suspect to the others, and stays a member until the list says otherwise. So it never has to fence itself,
// and nothing that it owns is given to another meanwhile.
#pragma once

#include "cluster/roster.hpp"

namespace vmem::cluster {

class StaticPeers final : public Membership {
 public:
  // Epoch 1. Errors: INVALID_OPTION for a list that contradicts itself.
  static Result<StaticPeers> create(NodeIdentity self, const std::vector<Peer>& listed, Rules rules = {});

  const View& view() const noexcept override { return roster_.view(); }
  Status heard(const std::string& address, NodeIdentity node) override { return roster_.heard(address, node); }
  void missed(NodeId node) override { roster_.missed(node); }
  bool fenced(std::uint64_t) const noexcept override { return false; }
  void poll(std::vector<Change>& changes) override { roster_.take(changes); }

  // Another list, from another epoch on; nodes that joined unlisted leave if they are named. Errors: as Roster::advance.
  Status change(Epoch epoch, const std::vector<Peer>& listed, const std::vector<NodeId>& evicted = {}) {
    return roster_.advance(epoch, listed, evicted);
  }

 private:
  StaticPeers(NodeIdentity self, Rules rules) : roster_(self, rules) {}
  Roster roster_;
};

}  // namespace vmem::cluster
