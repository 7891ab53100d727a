#include "rdma/lending/remote_tier/page_jobs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <tuple>
#include <utility>

namespace vmem::rdma {

using tiers::Outcome;
using tiers::Transfer;
using tiers::Workers;
using wire::Answer;

namespace {

constexpr std::uint32_t kTries = 4;        // per copy, on checksum mismatch or failure
constexpr std::uint64_t kAgainUs = 5'000;  // delay before retrying a busy or failed copy

// Fails the job; the page stays where it is, and a later call may find memory.
void lacked_memory(PageJob& job, std::string_view what) {
  job.slab.reset();
  job.error = {VMEM_ERROR_OUT_OF_MEMORY, ENOMEM, fmt::format("no memory to {} {}", what, words(job))};
}

// nullopt: none came.
std::optional<Answer> answer_in(const CallEnd& end) {
  const auto reply = wire::read_body<wire::Reply>(end.body);
  return end.answered && reply ? std::optional(reply->answer) : std::nullopt;
}

}  // namespace

// ---- preparing ----

void PageJobs::begin(const PageJobRef& job) {
  const Transfer& transfer = job->transfer;
  const std::uint64_t now = parts_.node.clock().now_us();
  job->give_up_us = now + (job->is_load() ? config_.patience_us : 2 * config_.request_us);
  job->page.serial = transfer.page.serial;
  job->page.granule = transfer.page.granule;
  job->page.version = transfer.version;
  job->page.bytes = transfer.bytes;
  job->page.tenant = config_.tenant;
  if (transfer.ahead) ahead_.emplace(transfer.id, job);
  const StoredPage* const held = parts_.pages.find(transfer.slot);
  const bool known = held != nullptr && held->page.identity() == job->page.identity();
  if (job->is_load() && !known) {
    job->error.message = fmt::format("no such version of {} was stored", words(*job));
    return complete(job, Outcome::lost);
  }
  prepare(job);
}

// Memory is registered for the duration of the job, by a worker: registering it may take long, and
// must not delay the mover.
void PageJobs::prepare(const PageJobRef& job) {
  const StoredPage* const held = parts_.pages.find(job->transfer.slot);
  const StoredPage before = held == nullptr ? StoredPage{} : *held;
  auto work = [this, job, before](std::uint32_t) {
    job->stored = Bytes(job->transfer.host, job->transfer.bytes);
    if (job->is_load()) {
      job->page = before.page;
      job->proof = before.proof;
    } else if (auto done = parts_.protection.protect(*job, before); !done) {
      job->error = std::move(done).error();
      return;
    }
    if (auto slab = parts_.node.transport().register_slab(job->stored)) {
      job->slab = *std::move(slab);
    } else {
      job->error = std::move(slab).error();
    }
  };
  ++job->in_flight;
  parts_.workers.post(std::move(work), [this, job](Workers::Ended how) {
    --job->in_flight;
    if (how == Workers::Ended::no_memory) lacked_memory(*job, "protect or register");
    prepared(job);
  });
}

void PageJobs::prepared(const PageJobRef& job) {
  if (!job->slab) return complete(job, Outcome::failed);
  StoredPage& held = parts_.pages.of(job->transfer.slot);
  const CopyPlaces places = parts_.placer.copies(job->transfer.slot);
  for (std::size_t i = 0; i < config_.replicas; ++i) {
    held.valid[i] = held.valid[i] && parts_.placer.is_there(places[i]);
    const bool is_there = !job->is_load() && job->same && held.valid[i];
    job->copies[i].leg = is_there ? Leg::done : Leg::wanted;
  }
  if (!job->is_load()) {
    // The old copies are invalid from here on.
    if (!job->same) held.valid = {};
    held.page = job->page;
    held.content = job->content;
    held.proof = job->proof;
    held.granted = parts_.placer.granted(job->transfer.slot);
    parts_.pages.store_begins(held);
  }
  wait(job);
}

// ---- waiting ----

void PageJobs::wait(const PageJobRef& job) {
  if (!std::exchange(job->waits, true)) waiting_.push_back(job);
}

bool PageJobs::is_late(const PageJob& job) const { return parts_.node.clock().now_us() >= latest_us(job); }

void PageJobs::hurry(std::uint64_t transfer) {
  const auto found = ahead_.extract(transfer);
  if (found.empty()) return;
  found.mapped()->transfer.ahead = false;
  parts_.node.page_calls().hurry(found.mapped()->fetch);
}

void PageJobs::hurry_all() {
  latest_us_ = std::min(latest_us_, parts_.node.clock().now_us() + config_.request_us);
  parts_.lenders.give_up(latest_us_);
}

bool PageJobs::go_on() {
  bool did = false;
  const std::uint64_t now = parts_.node.clock().now_us();
  std::list<PageJobRef> jobs;
  jobs.swap(waiting_);
  for (const PageJobRef& job : jobs) {
    job->waits = false;
    if (job->again_us > now && !is_late(*job)) {
      wait(job);
      continue;
    }
    const auto before = job->in_flight;
    job->is_load() ? advance_load(job) : advance_store(job);
    did |= job->in_flight != before;
  }
  return did;
}

// ---- stores ----

void PageJobs::advance_store(const PageJobRef& job) {
  bool waits = false;
  for (std::size_t i = 0; i < config_.replicas; ++i) {
    if (job->copies[i].leg == Leg::wanted) waits |= !store_copy(job, i);
  }
  // The end of each put resumes the job. A put that failed at once has already queued the job.
  if (job->in_flight != 0 || job->waits) return;
  if (waits) return wait(job);
  finish_store(job);
}

void PageJobs::finish_store(const PageJobRef& job) {
  const StoredPage& held = parts_.pages.at(job->transfer.slot);
  const std::uint32_t copies = held.valid_copies();
  const bool lacks = parts_.placer.repair(held.granted, held.valid).kind != Repair::Kind::none;
  if (copies < config_.replicas && copies != 0) parts_.counters.add(&RemoteStatistics::single_copies);
  parts_.pages.store_ends(job->transfer.slot, lacks);
  if (copies == 0) parts_.pages.forget(job->transfer.slot);
  complete(job, copies == 0 ? Outcome::failed : Outcome::done);
}

// False: waits for the copy's node.
bool PageJobs::store_copy(const PageJobRef& job, std::size_t copy) {
  const CopyPlace at = place_of(*job, copy);
  const bool same_node = parts_.placer.is_there(at);
  if (same_node && parts_.placer.room(at.node).draining && parts_.placer.assign_new_place(job->transfer.slot, copy)) {
    parts_.lenders.release(at);
    put(job, copy);
    return true;
  }
  if (same_node && parts_.lenders.is_ready(at.node)) {
    put(job, copy);
    return true;
  }
  if (same_node && !is_late(*job)) return false;
  if (parts_.placer.assign_new_place(job->transfer.slot, copy)) {
    put(job, copy);
    return true;
  }
  job->copies[copy].leg = Leg::failed;
  const std::string& why = parts_.lenders.known(at.node).why;
  job->error = {VMEM_ERROR_OUT_OF_MEMORY, 0,
                fmt::format("no node has room for a copy of {}{}", words(*job),
                            why.empty() ? "" : fmt::format("; {}: {}", parts_.lenders.known(at.node).address, why))};
  return true;
}

void PageJobs::put(const PageJobRef& job, std::size_t copy) {
  const CopyPlace at = place_of(*job, copy);
  const wire::PageAt page{.lease = at.lease, .offset = at.offset, .page = job->page};
  job->copies[copy].leg = Leg::in_flight;
  ++job->copies[copy].tries;
  ++job->in_flight;
  const auto begun = parts_.rates.begins(at, tiers::Direction::store, job->page.bytes);
  const auto then = [this, job, copy, begun](const CallEnd& end) {
    const auto answer = answer_in(end);
    parts_.rates.ended(begun, answer == Answer::done);
    put_ended(job, copy, answer);
  };
  const Call put{.kind = wire::Kind::put,
                 .body = wire::body_of(page),
                 .payload = job->stored,
                 .reply_bytes = sizeof(wire::Reply),
                 .order = wire::Order::ahead};
  parts_.lenders.move(at.node, put, latest_us(*job), then);
}

void PageJobs::put_ended(const PageJobRef& job, std::size_t copy, std::optional<Answer> answer) {
  --job->in_flight;
  // The room may have been lost meanwhile.
  const bool there = parts_.placer.is_there(place_of(*job, copy));
  if (answer == Answer::done && there) {
    job->copies[copy].leg = Leg::done;
    parts_.pages.at(job->transfer.slot).valid[copy] = true;
    parts_.counters.add(&RemoteStatistics::stored_bytes, job->page.bytes);
  } else {
    put_failed(*job, copy, there ? answer : std::nullopt);
  }
  wait(job);
}

void PageJobs::put_failed(PageJob& job, std::size_t which, std::optional<Answer> answered) {
  PageJob::Copy& copy = job.copies[which];
  const CopyPlace at = place_of(job, which);
  const Answer answer = answered.value_or(Answer::again);
  parts_.counters.add(&RemoteStatistics::checksum_failures, answer == Answer::damaged ? 1 : 0);
  parts_.counters.add(&RemoteStatistics::retries);
  const std::string why = answered ? failure_words(at, answer) : parts_.lenders.known(at.node).why;
  job.error = {answer == Answer::full ? VMEM_ERROR_OUT_OF_MEMORY : VMEM_ERROR_DRIVER, 0,
               fmt::format("{} did not take {}: {}", parts_.lenders.known(at.node).address, words(job), why)};
  const bool more_tries = copy.tries < kTries;
  // full: the lender's owner has just taken room back.
  const bool no_place = answer == Answer::failed || answer == Answer::full;
  const bool moves = no_place && more_tries && parts_.placer.assign_new_place(job.transfer.slot, which);
  const bool may_mend = answer == Answer::again || (answer == Answer::damaged && more_tries);
  const bool too_late = is_late(job) && copy.tries > 1;
  copy.leg = moves || (may_mend && !too_late) ? Leg::wanted : Leg::failed;
  if (answer == Answer::again) job.again_us = parts_.node.clock().now_us() + kAgainUs;
}

// ---- loads ----

void PageJobs::advance_load(const PageJobRef& job) {
  if (job->in_flight != 0) return;
  const Choice choice = choose(*job);
  const bool too_late = is_late(*job);
  if (choice.best && !too_late) return fetch(job, *choice.best);
  if (choice.away && !too_late) return wait(job);
  give_up_load(job, choice);
}

// Prefers the copy whose lender is to verify it, then one with the fewest tries, then the node from
// which the fewest bytes are to come.
PageJobs::Choice PageJobs::choose(PageJob& job) {
  const CopyPlaces places = parts_.placer.copies(job.transfer.slot);
  const StoredPage& held = parts_.pages.at(job.transfer.slot);
  const auto rank = [&](std::size_t copy) {
    return std::tuple(job.unverified != copy, job.copies[copy].tries, parts_.lenders.loading_bytes(places[copy].node));
  };
  Choice choice;
  for (std::size_t i = 0; i < config_.replicas; ++i) {
    const std::uint32_t node = places[i].node;
    if (job.copies[i].leg != Leg::wanted || !held.valid[i] || !parts_.placer.is_there(places[i])) continue;
    if (!parts_.lenders.is_ready(node)) {
      choice.away = true;
      job.error = {VMEM_ERROR_TIMEOUT, 0,
                   fmt::format("{} is on {}, which is away: {}", words(job), parts_.lenders.known(node).address,
                               parts_.lenders.known(node).why)};
    } else if (!choice.best || rank(i) < rank(*choice.best)) {
      choice.best = i;
    }
  }
  return choice;
}

// LOST only if no copy can remain: an unreachable or unreadable copy still counts as kept.
void PageJobs::give_up_load(const PageJobRef& job, const Choice& choice) {
  if (choice.best) {
    const std::uint32_t node = place_of(*job, *choice.best).node;
    job->error = {VMEM_ERROR_TIMEOUT, 0,
                  fmt::format("{} did not arrive from {} in time", words(*job), parts_.lenders.known(node).address)};
  }
  const bool kept = choice.best || choice.away || job->kept;
  if (!kept) job->error.status = VMEM_ERROR_LOST;
  if (kept && job->error.status == VMEM_ERROR_LOST) job->error.status = VMEM_ERROR_DRIVER;
  complete(job, kept ? Outcome::failed : Outcome::lost);
}

void PageJobs::fetch(const PageJobRef& job, std::size_t copy) {
  const CopyPlace at = place_of(*job, copy);
  const bool unverified = std::exchange(job->unverified, std::nullopt) == copy;
  const wire::PageAt page{.lease = at.lease, .offset = at.offset, .page = job->page, .doubted = unverified ? 1u : 0u};
  ++job->copies[copy].tries;
  job->copies[copy].fetched_from = at;
  ++job->in_flight;
  const auto begun = parts_.rates.begins(at, tiers::Direction::load, job->page.bytes);
  const auto then = [this, job, copy, begun](const CallEnd& end) {
    const auto answer = answer_in(end);
    parts_.rates.ended(begun, answer == Answer::done && end.landed);
    fetch_ended(job, copy, answer == Answer::done && !end.landed ? Answer::again : answer);
  };
  const Call fetch{.kind = wire::Kind::fetch,
                   .body = wire::body_of(page),
                   .destination = job->stored,
                   .reply_bytes = sizeof(wire::Reply),
                   .order = job->transfer.ahead ? wire::Order::ahead : wire::Order::foreground};
  job->fetch = parts_.lenders.move(at.node, fetch, latest_us(*job), then);
}

void PageJobs::fetch_ended(const PageJobRef& job, std::size_t copy, std::optional<Answer> answer) {
  --job->in_flight;
  if (answer == Answer::done) return check(job, copy);
  parts_.counters.add(&RemoteStatistics::retries);
  if (answer == Answer::failed) {
    copy_unread(job, copy);
  } else if (answer && answer != Answer::again) {
    copy_failed(job, copy, wire::answer_words(*answer));
  }
  if (answer == Answer::again || answer == Answer::failed) job->again_us = parts_.node.clock().now_us() + kAgainUs;
  wait(job);
}

// If the copy was moved meanwhile, the fetch says nothing about it.
void PageJobs::copy_failed(const PageJobRef& job, std::size_t copy, std::string_view why) {
  if (place_of(*job, copy) != job->copies[copy].fetched_from) return;
  parts_.pages.at(job->transfer.slot).valid[copy] = false;
  job->copies[copy].leg = Leg::failed;
  const std::string& address = parts_.lenders.known(place_of(*job, copy).node).address;
  job->error = {VMEM_ERROR_LOST, 0, fmt::format("the copy of {} on {} is gone: {}", words(*job), address, why)};
  parts_.counters.add(&RemoteStatistics::copies_lost);
}

// The lender has the copy but could not read it.
void PageJobs::copy_unread(const PageJobRef& job, std::size_t copy) {
  if (job->copies[copy].tries < kTries) return;
  job->copies[copy].leg = Leg::failed;
  job->kept = true;
  const CopyPlace at = place_of(*job, copy);
  job->error = {VMEM_ERROR_DRIVER, 0,
                fmt::format("{} could not read {}: {}", parts_.lenders.known(at.node).address, words(*job),
                            failure_words(at, Answer::failed))};
}

void PageJobs::check(const PageJobRef& job, std::size_t copy) {
  const auto good = std::make_shared<bool>();
  ++job->in_flight;
  parts_.workers.post([this, job, good](std::uint32_t) { *good = parts_.protection.recover(*job); },
                      [this, job, copy, good](Workers::Ended how) {
                        --job->in_flight;
                        if (how == Workers::Ended::done) return checked(job, copy, *good);
                        lacked_memory(*job, "check");
                        complete(job, Outcome::failed);
                      });
}

void PageJobs::checked(const PageJobRef& job, std::size_t copy, bool good) {
  if (good) {
    parts_.counters.add(&RemoteStatistics::fetched_bytes, job->page.bytes);
    return complete(job, Outcome::done);
  }
  parts_.counters.add(&RemoteStatistics::checksum_failures);
  // The next fetch has the lender verify this copy. Otherwise its damage might be found only
  // when it is the last copy.
  job->unverified = copy;
  if (job->copies[copy].tries >= kTries) copy_failed(job, copy, "what arrives is something else every time");
  wait(job);
}

// ---- ends ----

void PageJobs::complete(const PageJobRef& job, Outcome outcome) {
  job->slab.reset();
  job->encrypted = {};
  if (job->transfer.ahead) ahead_.erase(job->transfer.id);
  tiers::Completion completion;
  completion.id = job->transfer.id;
  completion.outcome = outcome;
  completion.changed = job->transfer.if_changed && !job->same;
  if (outcome != Outcome::done) completion.error = job->error;
  parts_.ledger.complete(std::move(completion), job->transfer.direction);
}

CopyPlace PageJobs::place_of(const PageJob& job, std::size_t copy) const {
  return parts_.placer.copies(job.transfer.slot)[copy];
}

std::string PageJobs::failure_words(const CopyPlace& at, Answer answer) const {
  const bool by_disk = wire::medium_of(at.offset) == wire::Medium::disk && parts_.placer.room(at.node).disk_failed;
  return answer == Answer::failed && by_disk ? "its disk failed" : std::string(wire::answer_words(answer));
}

}  // namespace vmem::rdma
