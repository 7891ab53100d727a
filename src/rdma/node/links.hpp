// Connections that this node keeps up: it connects, connects again, and pings what is silent. A
// target may have several addresses, which are tried in order.
//
// Thread: the node's.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "rdma/node/pings.hpp"
#include "rdma/transport/transport.hpp"

namespace vmem::rdma {

enum class LinkId : std::uint32_t {};

// A connection is gone, or could not be made.
struct LinkDown {
  bool was_up = false;
  Reason reason = Reason::lost;
  int native = 0;  // errno, where one says why
  std::string why;
};

// Told what becomes of a link. Thread: the node's.
class LinkUser {
 public:
  virtual ~LinkUser() = default;
  // Errors: this node is not used; the link closes the connection and tries again.
  virtual Status up(LinkId link, const Connected& connected) = 0;
  virtual void down(LinkId link, const LinkDown& down) = 0;
};

struct LinkTimes {
  std::uint64_t connect_us = 2'000'000;
  std::uint64_t reconnect_us = 200'000;  // between attempts
  std::uint64_t ping_us = 5'000'000;     // a ping follows a silence this long
  std::uint64_t request_us = 2'000'000;  // deadline of a ping
};

class Links {
 public:
  Links(Transport& transport, Pings& pings, const Clock& clock, LinkTimes times)
      : transport_(transport), pings_(pings), clock_(clock), times_(times) {}

  // REQUIRES: at least one address. The user outlives the link.
  LinkId add(std::vector<std::string> addresses, LinkUser& user);
  // Closes the connection. The user is told nothing more. The id is not used again.
  void remove(LinkId link);
  // Closes the connection, for this reason; the next attempt comes after rest_us at least.
  void close(LinkId link, std::string why, std::uint64_t rest_us = 0);

  bool is_up(LinkId link) const;
  // 0: there is none, nor any memory in use by an earlier one.
  PeerId peer(LinkId link) const;

  // Connects and pings where it is time to; true: it did something.
  bool keep_up();
  // Events of the transport. False: of no link.
  bool connected(PeerId peer, const Connected& connected);
  bool gone(PeerId peer, const Gone& gone);
  // A call over this connection is beyond its deadline: others there would wait as long.
  bool late(PeerId peer);

 private:
  struct Link {
    enum class State : std::uint8_t { away, connecting, up, removed };
    LinkId id{};
    std::vector<std::string> addresses;
    LinkUser* user = nullptr;
    std::size_t next = 0;  // index of the address in use, or to be tried next
    State state = State::away;
    PeerId peer{};
    std::uint64_t again_us = 0;  // when away: the next attempt
    std::uint64_t rest_us = 0;   // minimum delay of that attempt
    std::uint64_t up_us = 0;
    bool closing = false;
    bool late = false;  // closing because of a deadline
    std::string why;    // it is closing
  };
  Link* find(PeerId peer);
  void connect(Link& link);
  void failed(Link& link, const LinkDown& down);
  std::uint64_t rest(Link& link, const LinkDown& down);

  Transport& transport_;
  Pings& pings_;
  const Clock& clock_;
  const LinkTimes times_;
  std::map<LinkId, Link> links_;
  LinkId last_{};
};

}  // namespace vmem::rdma
