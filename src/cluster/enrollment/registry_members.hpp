// The members of a cluster as its registry lists them. A node is listed from its enrollment until
// its lease ends, and only a reading of the registry ends it: a node that misses deadlines stays,
// as a suspect, and so does everybody while the registry is away.
//
// The epoch is the revision of the reading that last changed the list.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "base/log_limit.hpp"
#include "cluster/enrollment/enrollment_events.hpp"
#include "cluster/enrollment/node_poll.hpp"
#include "cluster/roster.hpp"

namespace vmem::cluster {

class RegistryMembers final : public Membership {
 public:
  struct Node {
    NodeRecord record;  // without anything, if it is damaged and was never read before
    Revision modified{};
  };

  explicit RegistryMembers(NodeIdentity self)
      : incarnation_(self.incarnation),
        roster_(self, {.suspect_after = Rules{}.suspect_after, .others_may_join = false}) {}

  // This node has another id from now on. REQUIRES: no reading has shown that id yet.
  void become(NodeId self);
  // A damaged record leaves the node as it was before, or, with a warning, a member of which
  // nothing is known: it is no proof that the node is gone.
  void take_in(const NodesReading& reading, std::vector<EnrollmentEvent>& events);

  // Whether a reading was taken in: the nodes are known.
  bool known() const noexcept { return known_; }
  // Of the latest reading: a node that was a member then, or before, and is not listed is gone.
  Revision as_of() const noexcept { return as_of_; }
  // Without this node.
  const std::map<NodeId, Node>& nodes() const noexcept { return nodes_; }
  // Whether the node, which may be this one, is asked to leave.
  bool draining(NodeId node) const { return draining_.contains(node); }
  std::optional<DrainOrder> drain(NodeId node) const {
    const auto found = draining_.find(node);
    return found == draining_.end() ? std::nullopt : std::optional(found->second);
  }

  std::optional<HbmLimit> hbm_limit(NodeId node) const {
    const auto found = hbm_limits_.find(node);
    return found == hbm_limits_.end() ? std::nullopt : std::optional(found->second);
  }

  const View& view() const noexcept override { return roster_.view(); }
  Status heard(const std::string& address, NodeIdentity node) override;
  void missed(NodeId node) override { roster_.missed(node); }
  void poll(std::vector<Change>& changes) override { roster_.take(changes); }

 private:
  std::map<NodeId, Node> read(const NodesReading& reading);
  void take_in_drains(const std::map<NodeId, DrainOrder>& draining, std::vector<EnrollmentEvent>& events);
  std::vector<Peer> peers() const;
  void advance(Revision revision);

  const Incarnation incarnation_;
  NodeId self_{};
  Revision as_of_{};
  std::map<NodeId, Node> nodes_;
  std::map<NodeId, DrainOrder> draining_;
  std::map<NodeId, HbmLimit> hbm_limits_;
  bool known_ = false;
  Roster roster_;
  LogLimit damaged_;
};

}  // namespace vmem::cluster
