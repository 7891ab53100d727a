#include "rdma/lending/memory_service/page_traffic.hpp"

#include <utility>
#include <vector>

#include "base/log.hpp"

namespace vmem::rdma {

using wire::Answer;
using wire::Kind;

namespace {

// A connection may break for other reasons, too.
constexpr std::uint32_t kMostDirectBreaks = 2;

}  // namespace

PageTraffic::PassageRef PageTraffic::begin(Way way, LeaseRef lease, PeerId peer, const wire::RequestId& request,
                                           const wire::PageAt& at) {
  auto passage = std::make_shared<Passage>();
  passage->way = way;
  passage->lease = std::move(lease);
  passage->peer = peer;
  passage->request = request;
  passage->at = at;
  return passage;
}

bool PageTraffic::stage(Passage& passage) {
  passage.staging = parts_.store.stage(passage.at.page.bytes);
  if (passage.staging) passage.memory = passage.staging.in(config_.memory);
  return static_cast<bool>(passage.staging);
}

void PageTraffic::answer(const Passage& passage, Answer answer) {
  const wire::Reply reply{.answer = answer, .lease = passage.at.lease, .offset = passage.at.offset};
  // Only a finished put is final: a retry may get a different answer to anything else.
  const bool put = passage.way == Way::in;
  const bool final = put && answer == Answer::done;
  parts_.replies.send(passage.peer, passage.request, put ? Kind::put_done : Kind::fetched, wire::body_of(reply),
                      final ? ReplyBox::Repeat::remember : ReplyBox::Repeat::forget);
  if (!final) parts_.replies.abandon(passage.request);
}

// ---- pages that come ----

std::optional<Claim> PageTraffic::claim(PeerId peer, NodeId client, const wire::Header& header,
                                        const wire::PageAt& at) {
  const LeaseRef lease = parts_.leases.find(client);
  if (!lease || lease->id != at.lease) {
    ++parts_.statistics.rejected;
    return std::nullopt;
  }
  if (!parts_.replies.admit(peer, header)) return std::nullopt;
  const PassageRef passage = begin(Way::in, lease, peer, header.request, at);
  Answer placed = parts_.store.make_room(*lease, at, header.request.sequence);
  if (placed == Answer::done && is_staged(at.offset) && !stage(*passage)) placed = Answer::again;
  if (placed != Answer::done) {
    answer(*passage, placed);
    return std::nullopt;
  }
  if (!is_staged(at.offset)) passage->memory = parts_.store.memory(*lease, at.offset, at.page.bytes);
  parts_.store.add(*lease, at, header.request.sequence);
  ++lease->busy;
  landing_.emplace(++last_token_, passage);
  return Claim{passage->memory, last_token_, config_.clock->now_us() + config_.request_us};
}

void PageTraffic::landed(std::uint64_t token) {
  if (const auto landed = landing_.extract(token); !landed.empty()) verify(landed.mapped());
}

void PageTraffic::receive_failed(std::uint64_t token) {
  if (const auto landed = landing_.extract(token); !landed.empty()) end_put(landed.mapped(), Answer::again);
}

void PageTraffic::verify(const PassageRef& passage) {
  const auto good = std::make_shared<bool>();
  parts_.workers.post([passage, good](std::uint32_t) { *good = passage->at.page.matches(passage->memory); },
                      [this, passage, good](tiers::Workers::Ended how) {
                        if (how == tiers::Workers::Ended::no_memory) return verified(passage, Answer::failed);
                        verified(passage, *good ? Answer::done : Answer::damaged);
                      });
}

// `failed`: no memory for the check, so nothing is known about the page.
void PageTraffic::verified(const PassageRef& passage, Answer found) {
  parts_.statistics.damaged += found == Answer::damaged ? 1 : 0;
  if (passage->way == Way::out) return found == Answer::done ? send_page(passage) : end_fetch(passage, found);
  if (found != Answer::done || !is_staged(passage->at.offset)) return end_put(passage, found);
  want_slot_.push_back(passage);
}

void PageTraffic::end_put(const PassageRef& passage, Answer put) {
  Lease& lease = *passage->lease;
  if (put == Answer::done) parts_.store.hold(lease, passage->at.offset);
  const auto page = lease.pages.find(passage->at.offset);
  if (put != Answer::done || page->second.released) parts_.store.erase(lease, page);
  passage->staging = {};
  --lease.busy;
  answer(*passage, put);
}

// ---- pages that go ----

void PageTraffic::fetch(PeerId peer, NodeId client, const wire::Header& header, ConstBytes body) {
  const auto at = wire::read_body<wire::PageAt>(body);
  const LeaseRef lease = parts_.leases.find(client);
  if (!at || !lease || lease->id != at->lease) {
    ++parts_.statistics.rejected;
    return;
  }
  if (!parts_.replies.admit(peer, header)) return;
  const PassageRef passage = begin(Way::out, lease, peer, header.request, *at);
  passage->order = header.order;
  const auto found = lease->pages.find(at->offset);
  if (found == lease->pages.end() || found->second.page != at->page) return answer(*passage, Answer::unknown);
  LentPage& page = found->second;
  const bool held = page.state == LentPage::State::held;
  const bool direct = may_go_directly(peer, *lease, *at);
  const bool staged = !is_staged(at->offset) || direct || (held && stage(*passage));
  if (!held || !staged) return answer(*passage, Answer::again);
  ++page.readers;
  ++lease->busy;
  if (direct) return send_page(passage);
  if (is_staged(at->offset)) return to_tier(passage, tiers::Direction::load, *page.slot);
  passage->memory = parts_.store.memory(*lease, at->offset, at->page.bytes);
  // The receiver verifies the page; verifying it here too would cost a third of sending it.
  if (at->doubted == 0) return send_page(passage);
  verify(passage);
}

void PageTraffic::send_page(const PassageRef& passage) {
  ++in_outbox_;
  parts_.outbox.add(passage->peer, passage->order, [this, passage] {
    --in_outbox_;
    return send_now(passage);
  });
}

std::optional<SendId> PageTraffic::send_now(const PassageRef& passage) {
  if (passage->memory.empty() && parts_.peers.find(passage->peer) == nullptr) {
    left(passage);
    return std::nullopt;
  }
  if (passage->memory.empty() && !pin(*passage)) {
    stage_late(passage);
    return std::nullopt;
  }
  const wire::Reply reply{.lease = passage->at.lease, .offset = passage->at.offset};
  const auto header = wire::write({.version = parts_.peers.version(passage->peer),
                                   .kind = Kind::fetched,
                                   .request = passage->request,
                                   .payload_bytes = passage->memory.size()},
                                  wire::body_of(reply));
  const ConstBytes payload[] = {passage->memory};
  Send page{.peer = passage->peer, .payload = payload, .deadline_us = config_.clock->now_us() + config_.request_us};
  if (header) page.header = *header;
  const Status posted = header ? parts_.transport.send({&page, 1}) : Status(std::unexpected(header.error()));
  if (!posted) {
    if (const auto times = unsent_.next(); times.logged)
      VMEM_LOG_WARN("a page could not be sent back: {} ({} so far)", posted.error().message, times.count);
    left(passage);
    return std::nullopt;
  }
  leaving_.emplace(page.id, passage);
  return page.id;
}

void PageTraffic::sent(SendId send) {
  const auto page = leaving_.extract(send);
  if (page.empty()) return;
  const Passage& passage = *page.mapped();
  parts_.statistics.fetched_bytes += passage.at.page.bytes;
  if (passage.pinned) {
    ++parts_.statistics.hbm_direct;
    if (passage.lease->direct_breaks < kMostDirectBreaks) passage.lease->direct_breaks = 0;
  } else if (wire::medium_of(passage.at.offset) == wire::Medium::hbm) {
    ++parts_.statistics.hbm_staged;
  }
  left(page.mapped());
}

void PageTraffic::send_failed(SendId send) {
  const auto page = leaving_.extract(send);
  if (page.empty()) return;
  if (page.mapped()->pinned) direct_send_failed(*page.mapped());
  left(page.mapped());
}

// Nothing reads the page's bytes any more.
void PageTraffic::left(const PassageRef& passage) {
  Lease& lease = *passage->lease;
  passage->staging = {};
  --lease.busy;
  parts_.replies.abandon(passage->request);  // pages are not cached: a repeat sends the page again
  const auto page = lease.pages.find(passage->at.offset);
  if (std::exchange(passage->pinned, false)) parts_.direct->unpin(*page->second.slot);
  if (--page->second.readers == 0 && page->second.released) parts_.store.erase(lease, page);
}

void PageTraffic::end_fetch(const PassageRef& passage, Answer fetched) {
  // Drop only a damaged page: after other failures, a later fetch may succeed.
  if (fetched == Answer::damaged) page_of(*passage).released = true;
  left(passage);
  answer(*passage, fetched);
}

void PageTraffic::release(Lease& lease, const wire::PageAt& at, std::uint64_t sequence) {
  const auto page = lease.pages.find(at.offset);
  if (page == lease.pages.end() || page->second.sequence > sequence) return;
  page->second.released = true;
  const bool arriving = page->second.state == LentPage::State::arriving;  // then end_put erases it
  if (!arriving && page->second.readers == 0) parts_.store.erase(lease, page);
}

// ---- directly from HBM ----

bool PageTraffic::may_go_directly(PeerId peer, const Lease& lease, const wire::PageAt& at) const {
  return parts_.direct != nullptr && wire::medium_of(at.offset) == wire::Medium::hbm && at.doubted == 0 &&
         lease.direct_breaks < kMostDirectBreaks && parts_.peers.takes_gpu_memory(peer);
}

// False: its granules lie apart, its slab is to go back, or direct sends have failed since it was
// asked for.
bool PageTraffic::pin(Passage& passage) {
  if (!may_go_directly(passage.peer, *passage.lease, passage.at)) return false;
  const auto pinned = parts_.direct->pin(*page_of(passage).slot);
  if (!pinned) return false;
  passage.memory = *pinned;
  passage.pinned = true;
  return true;
}

void PageTraffic::stage_late(const PassageRef& passage) {
  if (!stage(*passage)) return end_fetch(passage, Answer::again);
  to_tier(passage, tiers::Direction::load, *page_of(*passage).slot);
}

// The borrower asks again over its next connection.
void PageTraffic::direct_send_failed(const Passage& passage) {
  Lease& lease = *passage.lease;
  if (lease.broken == passage.peer) return;
  lease.broken = passage.peer;
  if (++lease.direct_breaks != kMostDirectBreaks) return;
  VMEM_LOG_WARN(
      "node {}: its pages in HBM go through staging from now on: {} connections broke while pages were sent "
      "directly from there",
      static_cast<std::uint64_t>(lease.client.id), kMostDirectBreaks);
}

// ---- disks and HBM ----

bool PageTraffic::serve_tiers() {
  bool did = find_slots();
  for (const wire::Medium medium : kStaged) {
    tiers::Tier* const tier = config_.tier(medium);
    std::vector<tiers::Completion> completions;
    if (tier == nullptr || !tier->poll(completions)) continue;
    for (const tiers::Completion& completion : completions) {
      if (const auto ended = in_tier_.extract(completion.id); !ended.empty()) tier_ended(ended.mapped(), completion);
    }
    did |= !completions.empty();
  }
  return did;
}

bool PageTraffic::find_slots() {
  bool did = false;
  for (auto each = want_slot_.begin(); each != want_slot_.end();) {
    const PassageRef passage = *each;
    const auto granted = tier_of(*passage).allocate(passage->at.page.bytes);
    if (granted && granted->grant == tiers::Grant::later) {
      ++each;
      continue;
    }
    did = true;
    each = want_slot_.erase(each);
    if (!granted || granted->grant == tiers::Grant::full) {
      (void)parts_.leases.follow_tiers();  // the borrower learns of the lost room before the answer
      end_put(passage, granted ? Answer::full : Answer::failed);
      continue;
    }
    page_of(*passage).slot = granted->slot;
    to_tier(passage, tiers::Direction::store, granted->slot);
  }
  return did;
}

void PageTraffic::to_tier(const PassageRef& passage, tiers::Direction direction, tiers::SlotId slot) {
  tiers::Transfer transfer;
  transfer.page = passage->at.page.identity().page;
  transfer.version = passage->at.page.version;
  transfer.slot = slot;
  transfer.host = passage->memory.data();
  transfer.bytes = passage->memory.size();
  transfer.direction = direction;
  if (const auto submitted = tier_of(*passage).submit({&transfer, 1}); !submitted) {
    tier_failed(*passage, submitted.error());
    return passage->way == Way::in ? end_put(passage, Answer::failed) : end_fetch(passage, Answer::failed);
  }
  in_tier_.emplace(transfer.id, passage);
}

void PageTraffic::tier_ended(const PassageRef& passage, const tiers::Completion& completion) {
  const bool done = completion.outcome == tiers::Outcome::done;
  if (!done) tier_failed(*passage, completion.error);
  if (passage->way == Way::in) return end_put(passage, done ? Answer::done : Answer::failed);
  if (!done) return end_fetch(passage, completion.outcome == tiers::Outcome::lost ? Answer::damaged : Answer::failed);
  if (passage->at.doubted == 0) return send_page(passage);  // the disk verified it
  verify(passage);
}

// Rate-limited: a failed disk fails every transfer in flight, and more follow.
void PageTraffic::tier_failed(const Passage& passage, const Error& error) {
  if (const auto failure = tier_failures_.next(); failure.logged)
    VMEM_LOG_WARN("a page in {}: {} ({} such failures)", wire::medium_words(*wire::medium_of(passage.at.offset)),
                  error.message, failure.count);
  (void)parts_.leases.follow_tiers();  // the borrower learns of the lost room before the answer
}

}  // namespace vmem::rdma
