// Requests that move a page to or from another node. To each node, and in each direction, as many
// are in flight as its FlowWindow lets, and the others wait here. So a slow node holds up only what
// is meant for it, and what somebody waits for passes what nobody does (Order).
//
// Thread: the node's.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "base/log_limit.hpp"
#include "rdma/node/calls.hpp"
#include "rdma/node/flow_window.hpp"
#include "rdma/node/order_turns.hpp"

namespace vmem::rdma {

// A request that may wait here.
struct PageCall {
  // With a payload, or a destination. Its deadline is set when it is sent.
  Call call;
  std::uint64_t request_us = 0;  // from its sending to its answer
  std::uint64_t give_up_us = 0;  // if it still waits then, it ends without an answer
  // Whether the page was moved; null: it was if a payload landed.
  bool (*moved)(const CallEnd&) = nullptr;
};

enum class PageCallId : std::uint64_t {};  // 0: none

class PageCalls {
 public:
  PageCalls(Calls& calls, const Clock& clock) : calls_(calls), clock_(clock) {}

  // `then` is called once, later. A call that cannot be sent ends without an answer, with a log
  // line.
  PageCallId begin(const PageCall& call, Calls::Then then);
  // Somebody waits for the page now. No effect once the call was sent.
  void hurry(PageCallId id);
  // The service's calls that wait give up at that time at the latest.
  void give_up(const Service* owner, std::uint64_t at_us);
  // Sends what may go, and ends what was given up; true: it did something.
  bool step();
  // The connection is gone.
  void break_all(PeerId peer);

  bool any_of(const Service* owner) const;
  // Bytes from the peer that are in flight or wait.
  std::uint64_t bytes_from(PeerId peer) const;
  // Whether pages for the peer wait.
  bool waits_to(PeerId peer) const;

 private:
  enum class Direction : std::uint8_t { in, out };
  struct Waiting {
    PageCallId id{};
    PageCall page;
    std::vector<std::byte> body;  // what page.call.body names
    Calls::Then then;
    std::uint64_t bytes() const { return page.call.payload.size() + page.call.destination.size(); }
  };
  using Queue = std::deque<Waiting>;
  struct Flow {
    FlowWindow window;
    std::array<Queue, wire::kOrders> waiting;  // by Order
    OrderTurns turns;
    std::uint64_t waiting_bytes = 0;
  };
  struct Key {
    PeerId peer{};
    Direction direction{};
    auto operator<=>(const Key&) const = default;
  };
  using Flows = std::map<Key, Flow>;

  bool send_some(const Key& key, Flow& flow);
  static Waiting take(Flow& flow, std::size_t order);
  void send(const Key& key, Flow& flow, Waiting waiting);
  void ended(const Key& key, const FlowWindow::Begun& begun, bool moved);
  bool end_late(Flow& flow);
  template <class Visit>
  void for_waiting(Visit visit);

  Calls& calls_;
  const Clock& clock_;
  LogLimit unsent_;
  Flows flows_;
  std::deque<Waiting> unanswered_;       // to be ended
  std::uint64_t next_late_us_ = kNever;  // no call gives up before
  std::uint64_t last_id_ = 0;
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
};

}  // namespace vmem::rdma
