#include "rdma/transport/faulty.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "rdma/transport/send_check.hpp"

namespace vmem::rdma {

FaultyTransport::FaultyTransport(std::unique_ptr<Transport> inner, const Clock& clock, std::uint64_t seed,
                                 Faults faults)
    : inner_(std::move(inner)), clock_(clock), faults_(faults), random_(seed) {}

FaultyTransport::~FaultyTransport() = default;

void FaultyTransport::set_faults(Faults faults) {
  const std::lock_guard lock(mutex_);
  faults_ = faults;
}

FaultCounts FaultyTransport::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void FaultyTransport::silence(PeerId peer, Way way) {
  const std::lock_guard lock(mutex_);
  if (way != Way::in) deaf_.insert(peer);
  if (way != Way::out) mute_.insert(peer);
}

bool FaultyTransport::happens(double probability) {
  return probability > 0 && std::uniform_real_distribution<>(0, 1)(random_) < probability;
}

Status FaultyTransport::send(std::span<Send> sends) {
  for (Send& send : sends) send.id = {};
  for (Send& send : sends) {
    VMEM_TRY(check_send(send));
    auto message = std::make_shared<Outgoing>();
    message->peer = send.peer;
    message->header.assign(send.header.begin(), send.header.end());
    message->payload.assign(send.payload.begin(), send.payload.end());
    message->deadline_us = send.deadline_us;
    const std::lock_guard lock(mutex_);
    message->id = SendId{++last_send_};
    VMEM_TRY(meet_accidents(message));
    send.id = message->id;
  }
  return {};
}

void FaultyTransport::cut(PeerId peer) {
  if (!connected_.contains(peer)) return;
  if (happens(faults_.cut_out)) counts_.cut += deaf_.insert(peer).second ? 1 : 0;
  if (happens(faults_.cut_in)) counts_.cut += mute_.insert(peer).second ? 1 : 0;
}

Status FaultyTransport::meet_accidents(std::shared_ptr<Outgoing> message) {
  if (gone_.contains(message->peer)) return pass_on(message, 1);  // fails at once
  cut(message->peer);
  if (deaf_.contains(message->peer)) {
    silenced_.push_back(std::move(message));
    return {};
  }
  if (happens(faults_.drop)) {
    ++counts_.dropped;
    events_.push({message->peer, Sent{message->id}});
    return {};
  }
  VMEM_TRY(corrupt(*message));
  if (happens(faults_.misdirect)) misdirect(*message);
  if (happens(faults_.delay)) {
    ++counts_.delayed;
    delayed_.emplace(clock_.now_us() + faults_.delay_us, std::move(message));
    return {};
  }
  const bool twice = happens(faults_.duplicate);
  counts_.duplicated += twice ? 1 : 0;
  return pass_on(message, twice ? 2 : 1);
}

Status FaultyTransport::corrupt(Outgoing& message) {
  const auto flip = [&](Bytes bytes) {
    const std::uint64_t bit = random_() % (bytes.size() * 8);
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  };
  if (!message.header.empty() && happens(faults_.corrupt_header)) {
    ++counts_.headers_corrupted;
    flip(message.header);
  }
  if (message.payload.empty() || !happens(faults_.corrupt_payload)) return {};
  ++counts_.payloads_corrupted;
  for (const ConstBytes span : message.payload) message.spoilt.insert(message.spoilt.end(), span.begin(), span.end());
  flip(message.spoilt);
  message.payload = {message.spoilt};
  VMEM_ASSIGN(message.spoilt_slab, inner_->register_slab(message.spoilt));
  return {};
}

void FaultyTransport::misdirect(Outgoing& message) {
  std::vector<PeerId> others;
  std::ranges::copy_if(connected_, std::back_inserter(others),
                       [&](PeerId peer) { return peer != message.peer && !deaf_.contains(peer); });
  if (others.empty()) return;
  ++counts_.misdirected;
  message.peer = others[random_() % others.size()];
}

Status FaultyTransport::pass_on(const std::shared_ptr<Outgoing>& message, int copies) {
  std::vector<Send> sends(static_cast<std::size_t>(copies), Send{.peer = message->peer,
                                                                 .header = message->header,
                                                                 .payload = message->payload,
                                                                 .deadline_us = message->deadline_us});
  const Status posted = inner_->send(sends);
  UnderWay under_way{.message = message};
  for (const Send& send : sends) {
    if (send.id == SendId{}) continue;
    ++under_way.copies;
    outer_of_.emplace(send.id, message->id);
  }
  if (under_way.copies == 0) return posted;
  under_way_.emplace(message->id, std::move(under_way));  // one posted copy suffices
  return {};
}

bool FaultyTransport::progress() {
  bool did = inner_->progress();
  const std::lock_guard lock(mutex_);
  did |= translate();
  did |= release_delayed();
  return expire_silent() || did;
}

void FaultyTransport::idle(std::uint64_t most_us) {
  {
    const std::lock_guard lock(mutex_);
    if (!delayed_.empty()) {
      const std::uint64_t now = clock_.now_us(), due = delayed_.begin()->first;
      most_us = std::min(most_us, due > now ? due - now : 0);
    }
  }
  inner_->idle(most_us);
}

bool FaultyTransport::release_delayed() {
  bool did = false;
  while (!delayed_.empty() && delayed_.begin()->first <= clock_.now_us()) {
    const auto message = std::move(delayed_.extract(delayed_.begin()).mapped());
    did = true;
    if (deaf_.contains(message->peer)) {
      silenced_.push_back(message);
    } else if (auto posted = pass_on(message, 1); !posted) {
      events_.push({message->peer, SendFailed{message->id, Reason::lost, std::move(posted).error()}});
    }
  }
  return did;
}

bool FaultyTransport::expire_silent() {
  bool did = false;
  for (const auto& message : silenced_) {
    if (message->deadline_us > clock_.now_us() || !timed_out_.insert(message->peer).second) continue;
    inner_->close(message->peer);  // its Gone ends the kept messages
    did = true;
  }
  return did;
}

bool FaultyTransport::translate() {
  std::vector<Event> events;
  inner_->poll(events);
  for (Event& event : events) translate(std::move(event));
  return !events.empty();
}

void FaultyTransport::translate(Event event) {
  if (const Sent* sent = std::get_if<Sent>(&event.what)) return end_copy(sent->id, std::nullopt);
  if (const SendFailed* failed = std::get_if<SendFailed>(&event.what)) return end_copy(failed->id, *failed);
  if (std::holds_alternative<Connected>(event.what)) connected_.insert(event.peer);
  if (const Message* message = std::get_if<Message>(&event.what); message != nullptr && mute_.contains(event.peer)) {
    if (message->payload.empty()) return;
    event.what = ReceiveFailed{message->token, {VMEM_ERROR_LOST, 0, "the peer was silenced"}};
  }
  if (Gone* gone = std::get_if<Gone>(&event.what)) {
    if (timed_out_.erase(event.peer) != 0)
      *gone = {Reason::timeout, {VMEM_ERROR_TIMEOUT, 0, "the peer did not answer before the deadline"}};
    fail_kept(event.peer, *gone);
    gone_.insert(event.peer);
    for (std::set<PeerId>* peers : {&connected_, &deaf_, &mute_}) peers->erase(event.peer);
  }
  events_.push(std::move(event));
}

void FaultyTransport::end_copy(SendId inner, std::optional<SendFailed> failed) {
  const auto outer = outer_of_.extract(inner);
  const auto found = under_way_.find(outer.mapped());
  UnderWay& under_way = found->second;
  if (failed) under_way.failed = std::move(failed);
  if (--under_way.copies != 0) return;
  const Outgoing& message = *under_way.message;
  if (under_way.failed) {
    if (timed_out_.contains(message.peer))
      *under_way.failed = {message.id, Reason::timeout, {VMEM_ERROR_TIMEOUT, 0, "a deadline passed"}};
    under_way.failed->id = message.id;
    events_.push({message.peer, *std::move(under_way.failed)});
  } else {
    events_.push({message.peer, Sent{message.id}});
  }
  under_way_.erase(found);
}

void FaultyTransport::fail_kept(PeerId peer, const Gone& gone) {
  const auto fail = [&](const std::shared_ptr<Outgoing>& message) {
    if (message->peer != peer) return false;
    events_.push({peer, SendFailed{message->id, gone.reason, gone.error}});
    return true;
  };
  std::erase_if(silenced_, fail);
  std::erase_if(delayed_, [&](const auto& entry) { return fail(entry.second); });
}

}  // namespace vmem::rdma
