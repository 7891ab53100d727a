#include "rdma/node/page_calls.hpp"

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "rdma/node/service.hpp"

namespace vmem::rdma {
namespace {

// Pages in flight are in memory of tiers, which is pinned.
constexpr std::uint64_t kMostBytes = std::uint64_t{512} << 20;
// On a local path, both ends spend more time on a page (registering, checking) than the path does.
// With no more in flight than the path holds, it would idle meanwhile.
constexpr std::uint64_t kLeastQueueUs = 4'000;

bool has_landed(const CallEnd& end) { return end.landed; }

}  // namespace

PageCallId PageCalls::begin(const PageCall& call, Calls::Then then) {
  Waiting waiting{.id = PageCallId{++last_id_},
                  .page = call,
                  .body = {call.call.body.begin(), call.call.body.end()},
                  .then = std::move(then)};
  waiting.page.call.body = {};
  const PageCallId id = waiting.id;
  const Key key{call.call.peer, call.call.payload.empty() ? Direction::in : Direction::out};
  Flow& flow = flows_.try_emplace(key, Flow{.window = FlowWindow(kMostBytes, kLeastQueueUs)}).first->second;
  flow.waiting_bytes += waiting.bytes();
  next_late_us_ = std::min(next_late_us_, call.give_up_us);
  flow.waiting[static_cast<std::size_t>(call.call.order)].push_back(std::move(waiting));
  (void)send_some(key, flow);
  return id;
}

void PageCalls::hurry(PageCallId id) {
  constexpr auto kFirst = static_cast<std::size_t>(wire::Order::foreground);
  for (auto& [key, flow] : flows_) {
    for (std::size_t order = kFirst + 1; order < wire::kOrders; ++order) {
      Queue& queue = flow.waiting[order];
      const auto found = std::ranges::find(queue, id, &Waiting::id);
      if (found == queue.end()) continue;
      Waiting waiting = std::move(*found);
      queue.erase(found);
      waiting.page.call.order = wire::Order::foreground;
      flow.waiting[kFirst].push_back(std::move(waiting));
      return;
    }
  }
}

// ---- sending ----

bool PageCalls::send_some(const Key& key, Flow& flow) {
  bool did = false;
  for (auto next = flow.turns.next(flow.waiting); next; next = flow.turns.next(flow.waiting)) {
    if (!flow.window.has_room(flow.waiting[*next].front().bytes(), clock_.now_us())) break;
    send(key, flow, take(flow, *next));
    did = true;
  }
  return did;
}

PageCalls::Waiting PageCalls::take(Flow& flow, std::size_t order) {
  Waiting waiting = std::move(flow.waiting[order].front());
  flow.waiting[order].pop_front();
  flow.waiting_bytes -= waiting.bytes();
  flow.turns.went(order, flow.waiting);
  return waiting;
}

// What is in flight already may take its time.
void PageCalls::send(const Key& key, Flow& flow, Waiting waiting) {
  FlowWindow& window = flow.window;
  const std::uint64_t now = clock_.now_us();
  const double before = window.bytes_per_us() == 0 ? 0 : double(window.in_flight_bytes()) / window.bytes_per_us();
  Call call = waiting.page.call;
  call.body = waiting.body;
  call.deadline_us = now + waiting.page.request_us + 2 * static_cast<std::uint64_t>(before);
  const FlowWindow::Begun begun = window.begin(waiting.bytes(), now);
  const auto moved = waiting.page.moved != nullptr ? waiting.page.moved : has_landed;
  // Kept outside, so that a call that is not sent still has it.
  const auto then = std::make_shared<Calls::Then>(std::move(waiting.then));
  const Status sent = calls_.begin(call, [this, key, begun, moved, then](const CallEnd& end) {
    ended(key, begun, moved(end));
    (*then)(end);
  });
  if (sent) return;
  if (const auto times = unsent_.next(); times.logged)
    VMEM_LOG_WARN("a {} was not sent to another node: {} ({} so far)", wire::kind_name(call.kind), sent.error().message,
                  times.count);
  window.failed(begun);
  waiting.then = std::move(*then);
  unanswered_.push_back(std::move(waiting));
}

void PageCalls::ended(const Key& key, const FlowWindow::Begun& begun, bool moved) {
  const auto flow = flows_.find(key);
  if (flow == flows_.end()) return;  // the connection is gone
  moved ? flow->second.window.delivered(begun, clock_.now_us()) : flow->second.window.failed(begun);
}

bool PageCalls::step() {
  bool did = false;
  const bool late = clock_.now_us() >= next_late_us_;
  if (late) next_late_us_ = kNever;
  for (auto& [key, flow] : flows_) {
    if (late) did |= end_late(flow);
    did |= send_some(key, flow);
  }
  for (; !unanswered_.empty(); did = true) {
    Waiting ended = std::move(unanswered_.front());
    unanswered_.pop_front();
    ended.then({});
  }
  return did;
}

// ---- ends ----

bool PageCalls::end_late(Flow& flow) {
  const std::size_t before = unanswered_.size();
  const std::uint64_t now = clock_.now_us();
  for (Queue& queue : flow.waiting) {
    for (auto each = queue.begin(); each != queue.end();) {
      if (each->page.give_up_us > now) {
        next_late_us_ = std::min(next_late_us_, (each++)->page.give_up_us);
        continue;
      }
      flow.waiting_bytes -= each->bytes();
      unanswered_.push_back(std::move(*each));
      each = queue.erase(each);
    }
  }
  return unanswered_.size() != before;
}

template <class Visit>
void PageCalls::for_waiting(Visit visit) {
  for (auto& [key, flow] : flows_) {
    for (Queue& queue : flow.waiting) {
      for (Waiting& each : queue) visit(each);
    }
  }
}

void PageCalls::give_up(const Service* owner, std::uint64_t at_us) {
  for_waiting([&](Waiting& each) {
    if (each.page.call.owner != owner) return;
    each.page.give_up_us = std::min(each.page.give_up_us, at_us);
    next_late_us_ = std::min(next_late_us_, at_us);
  });
}

void PageCalls::break_all(PeerId peer) {
  for (const Direction direction : {Direction::in, Direction::out}) {
    auto flow = flows_.extract(Key{peer, direction});
    if (flow.empty()) continue;
    for (Queue& queue : flow.mapped().waiting) std::ranges::move(queue, std::back_inserter(unanswered_));
  }
}

std::uint64_t PageCalls::bytes_from(PeerId peer) const {
  const auto flow = flows_.find({peer, Direction::in});
  return flow == flows_.end() ? 0 : flow->second.waiting_bytes + flow->second.window.in_flight_bytes();
}

bool PageCalls::waits_to(PeerId peer) const {
  const auto flow = flows_.find({peer, Direction::out});
  return flow != flows_.end() && flow->second.waiting_bytes != 0;
}

bool PageCalls::any_of(const Service* owner) const {
  const auto is_of = [&](const Waiting& each) { return each.page.call.owner == owner; };
  return std::ranges::any_of(unanswered_, is_of) || std::ranges::any_of(flows_, [&](const auto& each) {
           return std::ranges::any_of(each.second.waiting,
                                      [&](const Queue& queue) { return std::ranges::any_of(queue, is_of); });
         });
}

}  // namespace vmem::rdma
