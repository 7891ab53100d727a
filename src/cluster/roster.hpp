// The state machine of a membership, for implementations to build on: who is in the epoch, and how each stands.
#pragma once

#include "cluster/membership.hpp"

namespace vmem::cluster {

struct Peer {
  NodeId id{};  // 0: whoever is found at the address
  std::string address;
  friend bool operator==(const Peer&, const Peer&) = default;
};

struct Rules {
  std::uint32_t suspect_after = 3;  // deadlines missed without a word in between
  bool others_may_join = true;      // nodes that are not listed, but proved to know the secret
};

class Roster {
 public:
  Roster(NodeIdentity self, Rules rules) : rules_(rules) { view_.self = self; }

  const View& view() const noexcept { return view_; }
  Status heard(const std::string& address, NodeIdentity node);
  void missed(NodeId node);
  // The next epoch, in which these are listed. Who was a member and still is keeps its standing; nodes that joined unlisted stay
  // unless they are named in `evicted`. Errors: INVALID_VALUE for an epoch that is not later, INVALID_OPTION for a list that
  // names a node or an address twice, or this node.
  Status advance(Epoch epoch, const std::vector<Peer>& listed, const std::vector<NodeId>& evicted = {});
  void take(std::vector<Change>& changes);

 private:
  struct Record {
    bool listed = false;
    std::uint32_t missed = 0;
  };
  Status check_list(const std::vector<Peer>& listed) const;
  Result<std::size_t> place_of(const std::string& address, NodeIdentity node);
  std::size_t find(NodeId node) const;
  std::size_t find(const std::string& address) const;
  std::size_t add(Member member, bool listed);
  void say(Change::Kind kind, const Member& member);

  const Rules rules_;
  View view_;
  std::vector<Record> records_;  // of view_.members, in their order
  std::vector<Change> changes_;
};

}  // namespace vmem::cluster
