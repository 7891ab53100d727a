#include "rdma/lending/memory_service/reply_box.hpp"

#include "base/log.hpp"

namespace vmem::rdma {

using wire::Kind;

bool ReplyBox::admit(PeerId peer, const wire::Header& header) {
  const ReplyCache::Verdict verdict = cache_.arrived(header.request);
  if (verdict == ReplyCache::Verdict::carry_out) return true;
  if (verdict == ReplyCache::Verdict::stale) {
    ++statistics_.rejected;
    // Many later requests overtook this one. A client that still waits retries with a new sequence.
    const wire::Reply again{.answer = wire::Answer::again};
    if (header.kind == Kind::put) send(peer, header.request, Kind::put_done, wire::body_of(again));
    if (header.kind == Kind::fetch) send(peer, header.request, Kind::fetched, wire::body_of(again));
  }
  if (verdict != ReplyCache::Verdict::answered) return false;
  const ConstBytes reply = cache_.reply(header.request);
  queued_.emplace_back(peer, std::vector<std::byte>(reply.begin(), reply.end()));
  return false;
}

void ReplyBox::send(PeerId peer, const wire::RequestId& request, Kind kind, ConstBytes body, Repeat repeat) {
  auto bytes = wire::write({.version = peers_.version(peer), .kind = kind, .request = request}, body);
  if (!bytes) {
    if (const auto times = unwritten_.next(); times.logged)
      VMEM_LOG_ERROR("a reply could not be written: {} ({} so far)", bytes.error().message, times.count);
    return;
  }
  queued_.emplace_back(peer, *bytes);
  if (repeat == Repeat::remember) cache_.answered(request, *std::move(bytes));
}

bool ReplyBox::flush() {
  const bool any = !queued_.empty();
  for (const auto& [peer, header] : std::exchange(queued_, {})) {
    Send reply{.peer = peer, .header = header, .deadline_us = config_.clock->now_us() + config_.request_us};
    (void)transport_.send({&reply, 1});  // a disconnected peer asks again
  }
  return any;
}

}  // namespace vmem::rdma
