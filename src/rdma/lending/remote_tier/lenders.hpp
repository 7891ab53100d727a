// The nodes that lend to the tier: the link to each, and the lease that it granted.
//
// Thread: the node's.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/log_limit.hpp"
#include "rdma/lending/dead_nodes.hpp"
#include "rdma/lending/lease_message.hpp"
#include "rdma/lending/protocol.hpp"
#include "rdma/lending/remote_tier/copy_placer.hpp"
#include "rdma/lending/remote_tier/first_contacts.hpp"
#include "rdma/lending/remote_tier/lease_returns.hpp"
#include "rdma/lending/remote_tier/remote_config.hpp"
#include "rdma/lending/remote_tier/remote_counters.hpp"
#include "rdma/lending/remote_tier/stored_pages.hpp"
#include "rdma/node/node.hpp"

namespace vmem::rdma {

class Lenders final : public LinkUser {
 public:
  // All outlive this.
  struct Parts {
    Node& node;
    const Service& owner;  // of the calls
    CopyPlacer& placer;
    StoredPages& pages;
    FirstContacts& contacts;
    LeaseReturns& returns;
    RemoteCounters& counters;
  };
  Lenders(const RemoteConfig& config, Parts parts);

  // See RemoteTier::follow.
  void follow(const std::vector<NamedLender>& named);

  // Asks for the leases that are still to be asked for.
  void ask_again();
  // Gives up nodes whose process has ended; true: there were any.
  bool find_dead();
  // Returns the leases of draining nodes that have nothing of this tier any more, and uses those
  // nodes no longer. True: there were any.
  bool leave_drained();
  // A connected node whose lease can change its size.
  bool is_resizable(std::uint32_t node) const;
  // An answer about its lease is outstanding.
  bool is_asking(std::uint32_t node) const {
    const Lender& lender = lenders_[node];
    return lender.resizing || (lender.state == Lender::State::asking && lender.ask_us == 0);
  }
  // Asks for these sizes, and returns what is free beyond them (`surplus`: see
  // CopyPlacer::give_up). False: the lease has them already, and nothing is free that could be
  // returned. REQUIRES: is_resizable(), not is_asking().
  bool resize(std::uint32_t node, const wire::MediumBytes& wanted, const std::function<bool()>& surplus);
  // Asks for another size, or with the size that the lease has, what the lender has besides. The
  // same is required.
  void ask_for(std::uint32_t node, wire::Ask wanted);
  // Who has what the lenders have: "127.0.0.1:7000: 8 GiB of 8 GiB that it lends are leased ..."
  std::string shortage() const;
  // A message that answers no request: other parts of the lease's disk and HBM are usable now.
  void revised(PeerId peer, const wire::Lent& lent);

  // Moves a page; sets the call's connection, owner and deadline. The call waits for its turn
  // (PageCalls), until give_up_us at the latest.
  PageCallId move(std::uint32_t node, Call call, std::uint64_t give_up_us, Calls::Then then);
  // The calls that wait give up at that time at the latest.
  void give_up(std::uint64_t at_us) { parts_.node.page_calls().give_up(&parts_.owner, at_us); }
  // Of loads from the node that are in flight or wait.
  std::uint64_t loading_bytes(std::uint32_t node) const;
  // Tells the placer which nodes have as many stores as their path takes.
  void note_busy();
  void release(const CopyPlace& copy);
  // Returns all leases, as the last thing that is sent.
  void return_leases();
  // Closes all connections, and makes none any more.
  void close_all();
  bool all_closed() const;

  // For the jobs.
  bool is_ready(std::uint32_t node) const;
  struct Known {
    std::string address;           // the preferred one
    std::string why;               // it is away
    std::uint64_t drain_rate = 0;  // bytes per second at which copies leave the node, if it drains
  };
  const Known& known(std::uint32_t node) const { return lenders_[node]; }
  bool leaves() const { return leaving_; }

  Status up(LinkId link, const Connected& connected) override;
  void down(LinkId link, const LinkDown& down) override;

 private:
  struct Lender : Known {
    enum class State : std::uint8_t {
      away,
      asking,
      ready,
      returning,  // drained: the answer to its lease's return is outstanding, and it gets no page
      removed,
    };
    std::uint32_t index = 0;
    NodeIdentity expected;  // 0: whoever answers there
    LinkId link{};
    State state = State::away;
    NodeIdentity identity;
    std::string path;
    std::uint16_t version = 0;  // of the connection
    std::uint64_t lease = 0;
    wire::Ask wanted;          // as it was asked last, or is to be
    bool resizing = false;     // a lease is to get another size
    std::string full;          // who has the rest of what it lends
    std::uint64_t ask_us = 0;  // when asking or resizing: the next ask, if one was put off; 0: none
    Obstacle obstacle = Obstacle::none;
    bool was_ready = false;
    bool superseded = false;  // another process than the expected one answers at its address
    bool busy = false;        // as note_busy() said
    bool draining = false;    // as follow() said
    bool unlisted = false;    // follow() did not name it, and it answered
  };

  std::uint32_t begin(std::vector<std::string> addresses, NodeIdentity expected);
  bool keep_unlisted(std::uint32_t node);
  void set_drain(Lender& lender, const NamedLender& named);
  void remove(std::uint32_t node, std::string why);
  bool return_lease(const Lender& lender, Calls::Then then);
  void return_drained(Lender& lender);
  void drained(std::uint32_t node);
  Lender& of(LinkId link);
  std::uint64_t now_us() const { return parts_.node.clock().now_us(); }
  // A request about a lease; false, with a log line: not sent; `then` is not called.
  bool send(std::uint32_t node, Call call, Calls::Then then);
  void not_sent(const Lender& lender, wire::Kind kind, const Error& error);
  void ask(Lender& lender);
  void lent(Lender& lender, const std::optional<wire::Lent>& lent);
  void contradicted(Lender& lender);
  void take_lease(Lender& lender, const wire::Lent& lent);
  void resized(Lender& lender, const wire::Lent& lent);
  void lose_lease(Lender& lender, const std::string& why);

  const RemoteConfig& config_;
  const Parts parts_;
  LogLimit unused_, unsent_, broken_, back_, lost_, less_;  // rate-limited: nodes decide how often
  std::deque<Lender> lenders_;                              // by index; only grows
  std::vector<NamedLender> named_;                          // as follow() was told last
  std::map<std::uint64_t, std::uint32_t> followed_;         // index by name
  DeadNodes dead_;                                          // watches lenders on this machine
  std::uint64_t look_us_ = 0;                               // next check of dead_
  bool leaving_ = false;                                    // the leases are returned
  bool closed_ = false;                                     // close_all() was called
};

}  // namespace vmem::rdma
