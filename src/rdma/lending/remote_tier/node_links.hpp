// The tier's connection to each of its nodes, and the lease that the node granted. Reconnects for
// as long as the tier lives.
//
// Thread: the tier's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/log_limit.hpp"
#include "rdma/lending/dead_nodes.hpp"
#include "rdma/lending/remote_tier/copy_placer.hpp"
#include "rdma/lending/remote_tier/first_contacts.hpp"
#include "rdma/lending/remote_tier/remote_config.hpp"
#include "rdma/lending/remote_tier/remote_counters.hpp"
#include "rdma/lending/remote_tier/requests.hpp"
#include "rdma/lending/remote_tier/stored_pages.hpp"

namespace vmem::rdma {

class NodeLinks {
 public:
  // All outlive this.
  struct Parts {
    Transport& transport;
    Requests& requests;
    CopyPlacer& placer;
    StoredPages& pages;
    FirstContacts& contacts;
    RemoteCounters& counters;
  };
  NodeLinks(const RemoteConfig& config, Parts parts);

  // Connects, asks for leases and pings where it is time to; true: it did something.
  bool keep_connected();
  // Gives up nodes whose process has ended.
  bool find_dead();
  // Closes connections with a request past its deadline: other requests there would wait as long.
  bool expire();

  // Events of the transport.
  bool knows(PeerId peer) { return find(peer) != nullptr; }
  void connected(PeerId peer, const Connected& connected);
  void heard(PeerId peer);
  void gone(PeerId peer, Gone& gone);
  // Ended requests: an allocate that was answered, a ping that was answered.
  void lent(std::uint32_t node, const wire::Lent& lent);
  void pong(std::uint32_t node) { links_[node].pinged = false; }
  // A message that answers no request: the lease's disk range has shrunk.
  void shrunk(PeerId peer, const wire::Lent& lent);

  // Sends a request about a page.
  bool send(Request request, ConstBytes body, Bytes payload = {});
  void release(const CopyPlace& copy);
  // Returns all leases, as the last thing that is sent. The number of lenders that will answer;
  // nullopt: done before.
  std::optional<std::uint32_t> return_leases();

  // For the jobs.
  bool is_ready(std::uint32_t node) const;
  bool has_lease(const CopyPlace& copy) const { return copy.lease != 0 && links_[copy.node].lease == copy.lease; }
  const std::string& address(std::uint32_t node) const { return links_[node].address; }
  const std::string& why_away(std::uint32_t node) const { return links_[node].why; }

 private:
  struct Link {
    enum class State : std::uint8_t { away, connecting, asking, ready };
    std::string address;
    State state = State::away;
    PeerId peer{};
    NodeIdentity identity;
    std::string path;
    std::uint64_t lease = 0;
    std::uint64_t again_us = 0;  // when away: the next attempt
    std::uint64_t rest_us = 0;   // minimum delay of that attempt
    std::uint64_t ask_us = 0;    // when asking: the next ask, if one was put off; 0: none
    std::uint64_t heard_us = 0;  // its last answer
    Obstacle obstacle = Obstacle::none;
    bool was_ready = false;
    bool closing = false;
    bool pinged = false;
    std::string why;  // why it is away
  };

  Link* find(PeerId peer);
  std::uint32_t index_of(const Link& link) const { return static_cast<std::uint32_t>(&link - links_.data()); }
  void connect(Link& link);
  void ping(Link& link);
  void ask(Link& link);
  bool send(Link& link, Request request, Requests::Reply reply, ConstBytes body, Bytes payload = {});
  void take_lease(Link& link, const wire::Lent& lent);
  void refuse(Link& link, const wire::Lent& lent);
  void lose_lease(Link& link, const std::string& why);
  void missed(const Link& link);
  void close(Link& link);

  const RemoteConfig& config_;
  Transport& transport_;
  Requests& requests_;
  CopyPlacer& placer_;
  StoredPages& pages_;
  FirstContacts& contacts_;
  RemoteCounters& counters_;
  LogLimit unused_, broken_, back_, lost_, less_;  // rate-limited: nodes decide how often
  std::vector<Link> links_;                        // by index in config_.peers
  DeadNodes dead_;                                 // watches lenders on this machine
  std::uint64_t look_us_ = 0;                      // next check of dead_
  bool leaving_ = false;                           // no connection is made any more
};

}  // namespace vmem::rdma
