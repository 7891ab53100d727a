// The interface between vmem and the source of cluster membership. A membership has versions
// (epochs). Within an epoch nodes are heard of, miss deadlines, become suspect and recover. Only a
// new epoch removes a node, so that all nodes can agree on the members, and actions of an earlier
// epoch can be refused. One exception: an address that is listed without an id is that of whichever
// node proved its identity there last.
//
// Pure: no clock, no network, no locks. The caller reports its observations in order, and polls.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/node.hpp"
#include "base/status.hpp"

namespace vmem::cluster {

enum class Standing : std::uint8_t {
  expected,  // listed, not heard of yet
  member,
  suspect,  // missed deadlines: gets nothing new, and loses nothing
};
std::string_view standing_name(Standing standing) noexcept;

struct Member {
  NodeIdentity node;    // id 0: unknown until heard of
  std::string address;  // "": nobody connects to this node
  Standing standing = Standing::expected;
};

struct View {
  Epoch epoch{};
  NodeIdentity self;
  std::vector<Member> members;  // without self
};

struct Change {
  enum class Kind : std::uint8_t {
    joined,  // heard of for the first time
    suspected,
    recovered,  // heard of while suspect
    restarted,  // heard of in a later incarnation: the earlier one's memory is lost
    replaced,   // another node proved its identity at the address: this one's memory is lost
    evicted,    // not in the new epoch
  };
  Kind kind = Kind::joined;
  NodeIdentity node;
  std::string address;
  Epoch epoch{};  // of the change
};

class Membership {
 public:
  virtual ~Membership() = default;
  virtual const View& view() const noexcept = 0;
  // Records that `node` proved its identity, on a connection to `address`, or on an incoming one
  // (""). Errors: INVALID_OPTION if the node may not take part: a duplicate id, an incarnation that
  // is over, an unlisted node.
  virtual Status heard(const std::string& address, NodeIdentity node) = 0;
  // Records that `node` did not answer within a deadline.
  virtual void missed(NodeId node) = 0;
  // Appends the changes since the last call, in order.
  virtual void poll(std::vector<Change>& changes) = 0;
};

}  // namespace vmem::cluster
