// The state machine for implementations of Membership: the nodes of the epoch and their standing.
#pragma once

#include "cluster/membership.hpp"

namespace vmem::cluster {

struct Peer {
  NodeId id{};  // 0: any node at the address
  std::string address;
  bool operator==(const Peer&) const = default;
};

struct Rules {
  std::uint32_t suspect_after = 3;  // deadlines missed in a row
  bool others_may_join = true;      // unlisted nodes, once they proved their identity
};

class Roster {
 public:
  Roster(NodeIdentity self, Rules rules) : rules_(rules) { view_.self = self; }

  // This node has another identity from now on. REQUIRES: it is not that of a member.
  void become(NodeIdentity self) { view_.self = self; }
  // As Membership's functions of the same names; `take` is its `poll`.
  const View& view() const noexcept { return view_; }
  Status heard(const std::string& address, NodeIdentity node);
  void missed(NodeId node);
  // Begins the next epoch, with this list. Members that stay keep their standing; nodes that joined
  // unlisted stay unless `evicted` names them. Errors: INVALID_VALUE for an epoch that is not
  // later; INVALID_OPTION for a list that names a node or an address twice, or this node. Several
  // may have no address (""), if they have ids.
  Status advance(Epoch epoch, const std::vector<Peer>& listed, const std::vector<NodeId>& evicted = {});
  void take(std::vector<Change>& changes);

 private:
  struct Record {
    bool listed = false;
    bool any_id = false;  // listed without an id
    std::uint32_t missed = 0;
  };
  Status check_list(const std::vector<Peer>& listed) const;
  Result<std::size_t> place_of(const std::string& address, NodeIdentity node);
  std::size_t find(NodeId node) const;
  std::size_t find(const std::string& address) const;
  std::size_t add(Member member, Record record);
  void replace(std::size_t place, NodeIdentity node);
  void say(Change::Kind kind, const Member& member);

  const Rules rules_;
  View view_;
  std::vector<Record> records_;  // parallel to view_.members
  std::vector<Change> changes_;
};

}  // namespace vmem::cluster
