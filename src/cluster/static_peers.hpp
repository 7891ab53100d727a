// A membership by a list, the same for all nodes; a new list begins a new epoch. There is no lease:
// a node that is cut off is suspect to the others, and stays a member until a new list evicts it.
// So a node never has to fence itself, and nothing that it owns is given to another node meanwhile.
#pragma once

#include "cluster/roster.hpp"

namespace vmem::cluster {

class StaticPeers final : public Membership {
 public:
  // Epoch 1. Errors: INVALID_OPTION for a contradictory list.
  static Result<StaticPeers> create(NodeIdentity self, const std::vector<Peer>& listed, Rules rules = {});

  const View& view() const noexcept override { return roster_.view(); }
  Status heard(const std::string& address, NodeIdentity node) override { return roster_.heard(address, node); }
  void missed(NodeId node) override { roster_.missed(node); }
  void poll(std::vector<Change>& changes) override { roster_.take(changes); }

  // Begins a new epoch with a new list; nodes that joined unlisted leave if `evicted` names them.
  // Errors: as Roster::advance.
  Status change(Epoch epoch, const std::vector<Peer>& listed, const std::vector<NodeId>& evicted = {}) {
    return roster_.advance(epoch, listed, evicted);
  }

 private:
  StaticPeers(NodeIdentity self, Rules rules) : roster_(self, rules) {}
  Roster roster_;
};

}  // namespace vmem::cluster
