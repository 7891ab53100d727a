// The seam between vmem and whoever says which nodes there are. A membership has versions, epochs. Within an epoch nodes are heard of,
// miss deadlines and become suspect, and are heard of again; only a new epoch evicts one, so that all can agree on who is out, and
// what a node does in an earlier epoch can be refused.
//
// Pure: no clock, no network, no locks; the caller tells what it saw, in the order it saw it, and asks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/node.hpp"
#include "base/status.hpp"

namespace vmem::cluster {

enum class Standing : std::uint8_t {
  expected,  // listed, and not heard of yet
  member,
  suspect,  // missed deadlines: nothing new goes to it, nothing is taken from it
};
std::string_view standing_name(Standing standing) noexcept;

struct Member {
  NodeIdentity node;    // id 0: not known before it is heard of
  std::string address;  // "" of a node that nobody connects to
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
    restarted,  // heard of in a later incarnation: what the earlier one held is gone
    evicted,    // not in the new epoch
  };
  Kind kind = Kind::joined;
  NodeIdentity node;
  std::string address;
  Epoch epoch{};  // since which it is so
};

class Membership {
 public:
  virtual ~Membership() = default;
  virtual const View& view() const noexcept = 0;
  // A node proved who it is, on a connection to `address`, or on one that it made itself (""). Errors: INVALID_OPTION for who may
  // not take part: an id that two have, an incarnation that is over, one who is not listed.
  virtual Status heard(const std::string& address, NodeIdentity node) = 0;
  // It did not answer within a deadline.
  virtual void missed(NodeId node) = 0;
  // Whether this node may not act as a member now, because others may have evicted it already. now_us is on the clock that
  // deadlines are on: only how far it goes matters.
  virtual bool fenced(std::uint64_t now_us) const noexcept = 0;
  // Appends what changed since the last call, in order.
  virtual void poll(std::vector<Change>& changes) = 0;
};

}  // namespace vmem::cluster
