#include "rdma/lending/remote_tier/page_repairs.hpp"

#include <algorithm>
#include <utility>

namespace vmem::rdma {

using tiers::SlotId;
using tiers::Workers;
using wire::Answer;

namespace {

constexpr std::uint64_t kBeforeLookingAgainUs = 500'000;
// A look costs about 0.1 µs for each slot.
constexpr std::uint64_t kPerSlotUs = 2;
constexpr std::uint64_t kCatchUpUs = 100'000;    // of pauses, which later copies may make up for
constexpr std::uint64_t kAwaitedUs = 1'000'000;  // without a move, after which nobody waits
constexpr std::size_t kLooksPerStep = 256;       // a step must not delay the mover's transfers

bool is_done(const CallEnd& end) {
  const auto reply = wire::read_body<wire::Reply>(end.body);
  return end.answered && reply && reply->answer == Answer::done;
}

}  // namespace

// ---- what to do ----

bool PageRepairs::go_on(bool busy) {
  if (parts_.lenders.leaves()) return false;
  const std::uint64_t now = parts_.node.clock().now_us();
  if (to_look_at_.empty() && now >= look_us_) look();
  bool did = false;
  for (std::size_t looks = 0; looks < kLooksPerStep && !to_look_at_.empty(); ++looks) {
    if (now < next_us_ || !has_room(busy)) return did;
    const SlotId slot = to_look_at_.back();
    to_look_at_.pop_back();
    did = true;
    again_ |= !begin(slot);
  }
  return did;
}

// The next move is due at next_us_.
bool PageRepairs::is_awaited() const {
  return awaited_us_ != 0 && parts_.node.clock().now_us() < std::max(awaited_us_, next_us_) + kAwaitedUs;
}

// Moves that somebody waits for queue behind pages read ahead, at both lenders. Their share of the
// path is their share of the bytes in flight, so few would be slow.
bool PageRepairs::has_room(bool busy) const {
  if (is_awaited()) return in_flight_bytes_ < config_.drain_bytes || in_flight_.size() < kMostInFlight;
  return in_flight_.size() < (busy ? 1 : kMostInFlight);
}

// Slots are looked at again if a node, or a page, may have changed what they lack, or if something
// could not be done.
void PageRepairs::look() {
  if (in_flight_.empty() && !is_awaited()) buffers_.clear();
  const std::uint64_t rooms = parts_.placer.revision(), pages = parts_.pages.revision();
  if (!again_ && rooms == seen_rooms_ && pages == seen_pages_) return;
  again_ = false;
  seen_rooms_ = rooms;
  seen_pages_ = pages;
  to_look_at_ = parts_.pages.slots();
  look_us_ = parts_.node.clock().now_us() + kBeforeLookingAgainUs + kPerSlotUs * to_look_at_.size();
}

// False: there is something to do for the slot that cannot be done now.
bool PageRepairs::begin(SlotId slot) {
  const StoredPage* const held = parts_.pages.find(slot);
  if (held == nullptr) return true;
  if (held->storing || in_flight_.contains(slot)) return false;
  const Repair repair = parts_.placer.repair(held->granted, held->valid);
  if (repair.kind == Repair::Kind::none) return true;
  if (repair.kind == Repair::Kind::make) {
    make(repair, slot, *held);
    return in_flight_.contains(slot);
  }
  const auto old = parts_.placer.replace(held->granted, repair.copy, {});
  if (!old) return true;
  parts_.pages.at(slot).valid[repair.copy] = false;
  parts_.lenders.release(*old);
  return true;
}

// Prefers a copy on a node that stays. After a failure another copy may be the better one.
std::optional<CopyPlace> PageRepairs::source(SlotId slot, const ValidCopies& valid) const {
  const CopyPlaces copies = parts_.placer.copies(slot);
  std::vector<CopyPlace> usable;
  for (std::size_t i = 0; i < config_.replicas; ++i) {
    if (valid[i] && parts_.placer.is_there(copies[i]) && parts_.lenders.is_ready(copies[i].node))
      usable.push_back(copies[i]);
  }
  if (usable.empty()) return std::nullopt;
  std::ranges::stable_partition(usable, [&](const CopyPlace& at) { return !parts_.placer.room(at.node).draining; });
  return usable[failures_ % usable.size()];
}

void PageRepairs::pace(std::uint64_t bytes, std::uint64_t rate) {
  const std::uint64_t now = parts_.node.clock().now_us();
  next_us_ = std::max(next_us_, now - std::min(now, kCatchUpUs)) + bytes * 1'000'000 / std::max<std::uint64_t>(rate, 1);
}

// ---- one copy ----

void PageRepairs::make(const Repair& repair, SlotId slot, const StoredPage& held) {
  const CopyPlace leaves = parts_.placer.copies(slot)[repair.copy];
  const bool wanted_back = parts_.placer.is_wanted_back(leaves);
  const auto from = source(slot, held.valid);
  const auto to = from ? parts_.placer.reserve(held.granted, repair.copy) : std::nullopt;
  if (!to) return;
  const bool drains = parts_.placer.is_there(leaves) && parts_.placer.room(leaves.node).draining;
  if (!wanted_back) pace(held.page.bytes, drains ? parts_.lenders.known(leaves.node).drain_rate : config_.repair_rate);
  const bool awaited = drains || wanted_back;
  if (awaited) awaited_us_ = parts_.node.clock().now_us();
  auto job = std::make_shared<Job>();
  job->slot = slot;
  job->copy = repair.copy;
  job->order = awaited ? wire::Order::ahead : wire::Order::background;
  job->held = held;
  job->from = *from;
  job->to = *to;
  in_flight_.insert(slot);
  in_flight_bytes_ += held.page.bytes;
  auto prepare = [this, job](std::uint32_t) {
    job->buffer = buffers_.take(job->held.page.bytes);
    if (!job->buffer) return;
    job->bytes = job->buffer.bytes();
    if (auto slab = parts_.node.transport().register_slab(job->bytes)) job->slab = *std::move(slab);
  };
  parts_.workers.post(std::move(prepare), [this, job](Workers::Ended) { job->slab ? fetch(job) : fail(job); });
}

void PageRepairs::fetch(const JobRef& job) {
  const wire::PageAt at{.lease = job->from.lease, .offset = job->from.offset, .page = job->held.page};
  const Call fetch{.kind = wire::Kind::fetch,
                   .body = wire::body_of(at),
                   .destination = job->bytes,
                   .reply_bytes = sizeof(wire::Reply),
                   .order = job->order};
  parts_.lenders.move(job->from.node, fetch, give_up_us(),
                      [this, job](const CallEnd& end) { is_done(end) && end.landed ? check(job) : fail(job); });
}

void PageRepairs::check(const JobRef& job) {
  parts_.workers.post(
      [this, job](std::uint32_t) {
        job->intact = parts_.protection.is_intact(job->bytes, job->held.page, job->held.proof);
      },
      [this, job](Workers::Ended) {
        if (job->intact) return put(job);
        parts_.counters.add(&RemoteStatistics::checksum_failures);
        fail(job);
      });
}

// If the room was lost and taken again meanwhile, another page may be at that place.
void PageRepairs::put(const JobRef& job) {
  if (!parts_.placer.is_there(job->to)) return fail(job);
  const wire::PageAt at{.lease = job->to.lease, .offset = job->to.offset, .page = job->held.page};
  const Call put{.kind = wire::Kind::put,
                 .body = wire::body_of(at),
                 .payload = job->bytes,
                 .reply_bytes = sizeof(wire::Reply),
                 .order = job->order};
  parts_.lenders.move(job->to.node, put, give_up_us(),
                      [this, job](const CallEnd& end) { is_done(end) ? commit(job) : fail(job); });
}

void PageRepairs::commit(const JobRef& job) {
  if (!parts_.pages.is_unchanged(job->slot, job->held.store) || !parts_.placer.is_there(job->to)) return fail(job);
  const auto old = parts_.placer.replace(job->held.granted, job->copy, job->to);
  if (!old) return fail(job);
  end(*job);
  parts_.pages.at(job->slot).valid[job->copy] = true;
  parts_.lenders.release(*old);
  parts_.counters.add(&RemoteStatistics::stored_bytes, job->held.page.bytes);
  parts_.counters.add(&RemoteStatistics::repaired_bytes, job->held.page.bytes);
  to_look_at_.push_back(job->slot);  // another copy may be one too many now
}

void PageRepairs::end(const Job& job) {
  in_flight_.erase(job.slot);
  in_flight_bytes_ -= job.held.page.bytes;
}

// The lender may have the bytes all the same.
void PageRepairs::fail(const JobRef& job) {
  end(*job);
  parts_.lenders.release(job->to);
  parts_.placer.cancel(job->held.granted, job->to, job->held.page.bytes);
  ++failures_;
  again_ = true;
}

}  // namespace vmem::rdma
