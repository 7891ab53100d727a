#include "rdma/remote_tier.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <numeric>
#include <utility>

#include "base/log.hpp"
#include "base/options.hpp"

namespace vmem::rdma {

using tiers::Direction;
using tiers::Grant;
using tiers::Outcome;
using tiers::SlotGrant;
using tiers::SlotId;
using tiers::Transfer;
using wire::Answer;

namespace {

constexpr std::uint32_t kTries = 4;             // of a copy that arrives wrong, or that is busy
constexpr std::uint64_t kAgainUs = 5'000;       // before a place that was busy is asked again
constexpr std::uint64_t kFarewellUs = 300'000;  // lenders find out by themselves, later

// For each channel one that travels, and one that is sealed, checked or answered.
std::uint32_t busy_pages(std::uint32_t channels) { return std::max(tiers::TierInfo{}.busy_pages, 2 * channels); }

}  // namespace

Result<std::unique_ptr<RemoteTier>> RemoteTier::create(Config config) {
  std::unique_ptr<RemoteTier> tier(new RemoteTier(std::move(config)));
  VMEM_TRY(tier->open());
  return tier;
}

RemoteTier::RemoteTier(Config config)
    : config_(std::move(config)),
      info_{.name = "remote", .busy_pages = busy_pages(config_.channels)},
      buffers_(info_.busy_pages) {
  for (const std::string& address : config_.peers) nodes_.emplace_back().address = address;
  rooms_.resize(nodes_.size());
  reached_.resize(nodes_.size());
}

Status RemoteTier::open() {
  VMEM_ASSIGN(aead_, PageAead::create(config_.protection));
  VMEM_ASSIGN(transport_, config_.make_transport(*this));
  workers_ = std::make_unique<Workers>(config_.own_thread ? config_.workers : 0, [this] { transport_->wake(); });
  if (config_.own_thread) thread_ = std::make_unique<ProgressThread>(*transport_, [this] { return step(); });
  return {};
}

RemoteTier::~RemoteTier() {
  if (thread_) {
    finish();
    leave();
  }
  thread_.reset();
  workers_.reset();
  requests_.clear();
  waiting_.clear();
  posted_.clear();
  transport_.reset();
}

void RemoteTier::leave() {
  post(Farewell{});
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::microseconds(kFarewellUs), [&] { return said_farewell_ && farewells_ == 0; });
}

bool RemoteTier::step() {
  bool did = events_.handle_some(
      *transport_, [&](Event& event) { std::visit([&](auto& what) { handle(event.peer, what); }, event.what); });
  did |= take_posted();
  did |= workers_->finish();
  did |= config_.clock->now_us() >= look_us_ && find_dead();
  did |= keep_connected();
  did |= expire();
  did |= go_on();
  return did;
}

// ---- the mover's calls ----

tiers::TierUsage RemoteTier::usage() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> all, ready;
  for (const Room& room : rooms_) {
    all.push_back(room.memory_bytes + room.disk_bytes);
    if (room.ready) ready.push_back(room.free_bytes());
  }
  return {storable(all), used_bytes_, storable(ready)};
}

std::vector<std::uint64_t> RemoteTier::places() const {
  if (config_.replicas != 1) return {usage().budget_bytes};
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> all;
  for (const Room& room : rooms_) {
    for (const std::uint64_t bytes : {room.memory_bytes, room.disk_bytes}) {
      if (bytes != 0) all.push_back(bytes);
    }
  }
  return all;
}

// How many bytes of pages these rooms hold. Two copies of a page are on two nodes; where one node is left, pages have one
// copy, as allocate() gives them.
std::uint64_t RemoteTier::storable(std::span<const std::uint64_t> rooms) const {
  const std::uint64_t sum = std::accumulate(rooms.begin(), rooms.end(), std::uint64_t{0});
  const std::uint64_t largest = rooms.empty() ? 0 : std::ranges::max(rooms);
  if (config_.replicas == 1 || sum == largest) return sum;
  return std::min(sum / 2, sum - largest);
}

// REQUIRES: mutex_.
bool RemoteTier::there(const Copy& copy) const { return copy.lease != 0 && rooms_[copy.node].lease == copy.lease; }

// REQUIRES: mutex_. Where most is free, in memory before on a disk.
std::optional<RemoteTier::Copy> RemoteTier::place(std::uint64_t bytes, std::span<const Copy> apart_from) {
  std::optional<std::uint32_t> best;
  for (std::uint32_t node = 0; node < rooms_.size(); ++node) {
    const bool taken = std::ranges::any_of(apart_from, [&](const Copy& c) { return there(c) && c.node == node; });
    const Room& room = rooms_[node];
    if (!room.ready || taken || room.largest() < bytes) continue;
    const auto rank = [&](std::uint32_t n) {
      return std::pair(rooms_[n].memory.largest_bytes() >= bytes, rooms_[n].free_bytes());
    };
    if (!best || rank(node) > rank(*best)) best = node;
  }
  if (!best) return std::nullopt;
  Room& room = rooms_[*best];
  auto offset = room.memory.take(bytes);
  if (!offset) offset = room.disk.take(bytes);
  return Copy{*best, room.lease, *offset};
}

// REQUIRES: mutex_.
void RemoteTier::give_back(const Slot& slot) {
  for (const Copy& copy : slot.copies) {
    if (!there(copy)) continue;
    Room& room = rooms_[copy.node];
    (copy.offset >= wire::kDiskOffset ? room.disk : room.memory).give_back(copy.offset, slot.bytes);
  }
}

Result<SlotGrant> RemoteTier::allocate(std::uint64_t page_bytes) {
  const std::lock_guard lock(mutex_);
  const auto ready = static_cast<std::uint32_t>(std::ranges::count_if(rooms_, &Room::ready));
  const std::uint32_t wanted = std::min(config_.replicas, ready);
  Slot slot{.bytes = page_bytes, .copies = {}};
  for (std::uint32_t i = 0; i < wanted; ++i) {
    const auto copy = place(page_bytes, slot.copies);
    if (!copy) {
      give_back(slot);
      return no_room(page_bytes);
    }
    slot.copies[i] = *copy;
  }
  if (wanted == 0) return no_room(page_bytes);
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<SlotId>(slots_.size()));
    slots_.emplace_back();
  }
  const SlotId id = free_slots_.back();
  free_slots_.pop_back();
  slots_[id] = slot;
  used_bytes_ += page_bytes;
  return SlotGrant{Grant::granted, id};
}

// REQUIRES: mutex_. A node whose end is not proved may come back, with room.
Result<SlotGrant> RemoteTier::no_room(std::uint64_t page_bytes) const {
  for (std::size_t node = 0; node < rooms_.size(); ++node) {
    const Room& room = rooms_[node];
    if (room.lease == 0 || room.ready || room.largest() < page_bytes) continue;
    return fail(VMEM_ERROR_TIMEOUT,
                fmt::format("the node at {} is away, and may come back with room", config_.peers[node]));
  }
  return SlotGrant{};
}

void RemoteTier::release(SlotId slot) {
  Release release{slot, {}};
  {
    const std::lock_guard lock(mutex_);
    release.places = std::exchange(slots_[slot], {});
    give_back(release.places);
    used_bytes_ -= release.places.bytes;
    free_slots_.push_back(slot);
  }
  post(release);
}

Status RemoteTier::submit(std::span<Transfer> transfers) {
  for (Transfer& transfer : transfers) transfer.id = 0;
  for (Transfer& transfer : transfers) {
    auto job = std::make_shared<Job>();
    const std::uint64_t id = tiers::next_transfer_id();
    job->transfer = transfer;
    job->transfer.id = id;
    {
      const std::lock_guard lock(mutex_);
      posted_.push_back(std::move(job));
      ++jobs_;
    }
    transfer.id = id;
    transport_->wake();
  }
  return {};
}

Status RemoteTier::poll(std::vector<tiers::Completion>& completions) {
  const std::lock_guard lock(mutex_);
  completions.reserve(completions.size() + completions_.size());
  std::ranges::move(completions_, std::back_inserter(completions));
  completions_.clear();
  return {};
}

void RemoteTier::finish() noexcept {
  post(Hurry{});
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return jobs_ == 0; });
}

bool RemoteTier::kept(SlotId slot) const {
  const std::lock_guard lock(mutex_);
  const auto copies = std::ranges::count_if(slots_[slot].copies, [&](const Copy& copy) { return there(copy); });
  const auto ready = std::ranges::count_if(rooms_, &Room::ready);
  return copies >= std::clamp<std::ptrdiff_t>(ready, 1, config_.replicas);
}

std::string RemoteTier::where(SlotId slot) const {
  const std::lock_guard lock(mutex_);
  std::string nodes;
  for (const Copy& copy : slots_[slot].copies) {
    if (copy.lease != 0) nodes += (nodes.empty() ? "the node at " : " and the node at ") + config_.peers[copy.node];
  }
  return nodes.empty() ? std::string(info_.name) : nodes;
}

RemoteStatistics RemoteTier::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

std::string RemoteTier::describe() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (std::size_t i = 0; i < reached_.size(); ++i)
    text += fmt::format("{}{} by {}, {}", text.empty() ? "" : "; ", config_.peers[i], reached_[i].path,
                        format_bytes(rooms_[i].memory_bytes + rooms_[i].disk_bytes));
  return text;
}

void RemoteTier::post(Posted posted) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(posted));
  }
  transport_->wake();
}

// ---- jobs ----

bool RemoteTier::take_posted() {
  std::vector<Posted> posted;
  {
    const std::lock_guard lock(mutex_);
    posted.swap(posted_);
  }
  for (const Posted& each : posted) std::visit([&](const auto& what) { take(what); }, each);
  return !posted.empty();
}

void RemoteTier::take(const JobRef& job) {
  const Transfer& transfer = job->transfer;
  const std::uint64_t now = config_.clock->now_us();
  const bool load = transfer.direction == Direction::load;
  job->begun_us = now;
  job->give_up_us = now + (load ? config_.patience_us : 2 * config_.request_us);
  if (transfer.deadline_us != 0) job->give_up_us = std::min(job->give_up_us, transfer.deadline_us);
  job->page.home = static_cast<std::uint32_t>(config_.self.id);
  job->page.granule = transfer.page.granule;
  job->page.version = transfer.version;
  job->page.bytes = transfer.bytes;
  job->page.tenant = config_.tenant;
  const auto held = held_.find(transfer.slot);
  const bool known = held != held_.end() && held->second.page.identity() == job->page.identity();
  if (load && !known) {
    job->error.message = fmt::format("no such version of {} was stored", words(*job));
    return complete(job, Outcome::lost);
  }
  seal(job);
}

// The memory that is sent, or received into, is registered for as long; where that costs something, it is not the mover who pays.
void RemoteTier::seal(const JobRef& job) {
  const auto held = held_.find(job->transfer.slot);
  const Held before = held == held_.end() ? Held{} : held->second;
  const auto work = [this, job, before] {
    job->stored = Bytes(job->transfer.host, job->transfer.bytes);
    if (job->transfer.direction == Direction::load) {
      job->page = before.page;
      job->proof = before.proof;
    } else if (auto done = protect(*job, before); !done) {
      job->error = std::move(done).error();
      return;
    }
    if (auto slab = transport_->register_slab(job->stored)) {
      job->slab = *std::move(slab);
    } else {
      job->error = std::move(slab).error();
    }
  };
  ++job->under_way;
  workers_->post(work, [this, job](Workers::Ended how) {
    --job->under_way;
    if (how == Workers::Ended::no_memory) lacked_memory(*job, "protect or register");
    prepared(job);
  });
}

// The page stays where it is; the next call may have more.
void RemoteTier::lacked_memory(Job& job, std::string_view what) const {
  job.slab.reset();
  job.error = {VMEM_ERROR_OUT_OF_MEMORY, ENOMEM, fmt::format("no memory to {} {}", what, words(job))};
}

// Every store has a proof of its own, unless the copies there may stay as they are: then a missing one is
// made of the same bytes. A checksum alone does not tell that a page is the same: whoever chooses its content
// can choose two with one checksum.
Status RemoteTier::protect(Job& job, const Held& before) {
  const ConstBytes page = job.stored;
  const tiers::PageIdentity identity = job.page.identity();
  if (aead_->encrypts()) {
    job.encrypted = buffers_.take(page.size());
    if (!job.encrypted)
      return fail(VMEM_ERROR_OUT_OF_MEMORY, fmt::format("no memory to encrypt a page of {}", format_bytes(page.size())),
                  ENOMEM);
    job.stored = job.encrypted.bytes();
  }
  job.content = tiers::seal(page, identity);
  job.same = job.transfer.if_changed && before.page.identity() == identity && before.content == job.content &&
             aead_->protect_again(page, identity, before.proof, job.stored);
  job.proof = job.same ? before.proof : aead_->protect(page, identity, job.stored);
  const tiers::Checksum sum = aead_->encrypts() ? tiers::seal(job.stored, identity) : job.content;
  job.page.low = sum.low;
  job.page.high = sum.high;
  return {};
}

void RemoteTier::prepared(const JobRef& job) {
  if (!job->slab) return complete(job, Outcome::failed);
  Held& held = held_[job->transfer.slot];
  const bool keep = job->same;
  const bool load = job->transfer.direction == Direction::load;
  {
    const std::lock_guard lock(mutex_);
    const Slot& slot = slots_[job->transfer.slot];
    for (std::size_t i = 0; i < config_.replicas; ++i) {
      held.valid[i] = held.valid[i] && there(slot.copies[i]);
      const bool wanted = load ? held.valid[i] : !(keep && held.valid[i]);
      job->legs[i] = wanted ? Leg::wanted : load ? Leg::none : Leg::done;
    }
  }
  // What the places held is gone from here on.
  if (!load && !keep) held.valid = {};
  if (!load) {
    held.page = job->page;
    held.content = job->content;
    held.proof = job->proof;
  }
  job->unchanged = keep && std::ranges::none_of(job->legs, [](Leg leg) { return leg == Leg::wanted; });
  wait(job);
}

void RemoteTier::wait(const JobRef& job) {
  if (!std::exchange(job->waits, true)) waiting_.push_back(job);
}

bool RemoteTier::late(const Job& job) const { return config_.clock->now_us() >= std::min(job.give_up_us, latest_us_); }

bool RemoteTier::go_on() {
  bool did = false;
  const std::uint64_t now = config_.clock->now_us();
  std::list<JobRef> jobs;
  jobs.swap(waiting_);
  for (const JobRef& job : jobs) {
    job->waits = false;
    if (job->again_us > now && !late(*job)) {
      wait(job);
      continue;
    }
    const auto under_way = job->under_way;
    advance(job);
    did |= job->under_way != under_way;
  }
  return did;
}

// Either it comes to an end, or something is under way, or it waits.
void RemoteTier::advance(const JobRef& job) {
  if (job->transfer.direction == Direction::load) return advance_load(job);
  advance_store(job);
}

RemoteTier::Slot RemoteTier::slot_of(SlotId slot) const {
  const std::lock_guard lock(mutex_);
  return slots_[slot];
}

void RemoteTier::advance_store(const JobRef& job) {
  bool waits = false;
  for (std::size_t i = 0; i < config_.replicas; ++i) {
    if (job->legs[i] == Leg::wanted) waits |= !store_copy(job, i);
  }
  // Whatever ends calls this again. A put that was refused at once has already ended, and waits.
  if (job->under_way != 0 || job->waits) return;
  if (waits) return wait(job);
  const Held& held = held_.at(job->transfer.slot);
  const auto copies = static_cast<std::uint32_t>(std::ranges::count(held.valid, true));
  if (copies < config_.replicas && copies != 0) {
    const std::lock_guard lock(mutex_);
    ++statistics_.single_copies;
  }
  if (copies == 0) held_.erase(job->transfer.slot);
  complete(job, copies == 0 ? Outcome::failed : Outcome::done);
}

// False: its node is waited for.
bool RemoteTier::store_copy(const JobRef& job, std::size_t copy) {
  const Copy at = slot_of(job->transfer.slot).copies[copy];
  const Node& node = nodes_[at.node];
  const bool same_node = at.lease != 0 && node.lease == at.lease;
  if (same_node && node.state == Node::State::ready && !node.closing) {
    put(job, copy);
    return true;
  }
  if (same_node && !late(*job)) return false;
  const bool moved = [&] {
    const std::lock_guard lock(mutex_);
    return replace_copy(job->transfer.slot, copy);
  }();
  if (moved) {
    put(job, copy);
    return true;
  }
  job->legs[copy] = Leg::failed;
  job->error = {VMEM_ERROR_OUT_OF_MEMORY, 0,
                fmt::format("no node has room for a copy of {}{}", words(*job),
                            node.why.empty() ? "" : fmt::format("; {}: {}", node.address, node.why))};
  return true;
}

// REQUIRES: mutex_. Elsewhere, because its node is away, knows nothing of it or could not keep it.
bool RemoteTier::replace_copy(SlotId id, std::size_t copy) {
  Slot& slot = slots_[id];
  auto others = slot.copies;
  others[copy] = {};
  const auto found = place(slot.bytes, others);
  if (!found) return false;
  Slot old{.bytes = slot.bytes, .copies = {}};
  old.copies[0] = slot.copies[copy];
  give_back(old);
  slot.copies[copy] = *found;
  return true;
}

void RemoteTier::advance_load(const JobRef& job) {
  if (job->under_way != 0) return;
  const Slot slot = slot_of(job->transfer.slot);
  const Held& held = held_.at(job->transfer.slot);
  std::optional<std::size_t> best;
  bool away = false;
  for (std::size_t i = 0; i < config_.replicas; ++i) {
    const Node& node = nodes_[slot.copies[i].node];
    if (job->legs[i] != Leg::wanted || !held.valid[i] || node.lease != slot.copies[i].lease) continue;
    if (node.state != Node::State::ready || node.closing) {
      away = true;
      job->error = {VMEM_ERROR_TIMEOUT, 0,
                    fmt::format("{} is on {}, which is away: {}", words(*job), node.address, node.why)};
    } else if (!best || job->doubted == i || (job->doubted != best && job->tries[i] < job->tries[*best])) {
      best = i;
    }
  }
  const bool too_late = late(*job);
  if (best && !too_late) return fetch(job, *best);
  if (away && !too_late) return wait(job);
  if (best) {
    job->error = {
        VMEM_ERROR_TIMEOUT, 0,
        fmt::format("{} did not arrive from {} in time", words(*job), nodes_[slot.copies[*best].node].address)};
  }
  const bool kept = best || away || job->kept;
  // While it was waited for it was not lost yet; and where one copy is kept, that another is gone
  // loses nothing.
  if (!kept) job->error.status = VMEM_ERROR_LOST;
  if (kept && job->error.status == VMEM_ERROR_LOST) job->error.status = VMEM_ERROR_DRIVER;
  complete(job, kept ? Outcome::failed : Outcome::lost);
}

void RemoteTier::put(const JobRef& job, std::size_t copy) {
  const Copy at = slot_of(job->transfer.slot).copies[copy];
  const wire::PageAt page{.lease = at.lease, .offset = at.offset, .page = job->page};
  job->legs[copy] = Leg::under_way;
  ++job->tries[copy];
  ++job->under_way;
  request({.kind = wire::Kind::put, .node = at.node, .job = job, .copy = copy, .deadline_us = 0}, wire::body_of(page),
          job->stored);
}

void RemoteTier::fetch(const JobRef& job, std::size_t copy) {
  const Copy at = slot_of(job->transfer.slot).copies[copy];
  const bool doubted = std::exchange(job->doubted, std::nullopt) == copy;
  const wire::PageAt page{.lease = at.lease, .offset = at.offset, .page = job->page, .doubted = doubted ? 1u : 0u};
  ++job->tries[copy];
  ++job->under_way;
  request({.kind = wire::Kind::fetch, .node = at.node, .job = job, .copy = copy, .deadline_us = 0},
          wire::body_of(page));
}

// It has an answer, or none will come; nothing uses the job's memory for it any more.
void RemoteTier::ended(const Request& request) {
  if (!request.job) return;
  --request.job->under_way;
  if (request.kind == wire::Kind::put) {
    put_ended(request);
  } else {
    fetch_ended(request);
  }
}

void RemoteTier::put_ended(const Request& request) {
  const JobRef& job = request.job;
  const std::size_t copy = request.copy;
  const Answer answer = request.answer.value_or(Answer::again);
  const std::lock_guard lock(mutex_);
  if (answer == Answer::done) {
    job->legs[copy] = Leg::done;
    held_.at(job->transfer.slot).valid[copy] = true;
    statistics_.stored_bytes += job->page.bytes;
  } else {
    const bool may_mend = answer == Answer::damaged || answer == Answer::again;
    const bool too_late = late(*job) && job->tries[copy] > 1;
    statistics_.checksum_failures += answer == Answer::damaged ? 1 : 0;
    ++statistics_.retries;
    job->error = {answer == Answer::full ? VMEM_ERROR_OUT_OF_MEMORY : VMEM_ERROR_DRIVER, 0,
                  fmt::format("{} did not take {}: {}", nodes_[request.node].address, words(*job),
                              request.broken ? nodes_[request.node].why
                                             : failure_words(slots_[job->transfer.slot].copies[copy], answer))};
    const bool moves = answer == Answer::failed && job->tries[copy] < kTries && replace_copy(job->transfer.slot, copy);
    const bool again = may_mend && !too_late && (answer == Answer::again || job->tries[copy] < kTries);
    job->legs[copy] = moves || again ? Leg::wanted : Leg::failed;
    if (answer == Answer::again) job->again_us = config_.clock->now_us() + kAgainUs;
  }
  wait(job);
}

// REQUIRES: mutex_.
std::string RemoteTier::failure_words(const Copy& at, Answer answer) const {
  const bool by_disk = at.offset >= wire::kDiskOffset && rooms_[at.node].disk_failed();
  return answer == Answer::failed && by_disk ? "its disk failed" : std::string(wire::answer_words(answer));
}

void RemoteTier::fetch_ended(const Request& request) {
  const JobRef& job = request.job;
  if (request.answer == Answer::done) return check(job, request.copy);
  {
    const std::lock_guard lock(mutex_);
    ++statistics_.retries;
  }
  if (request.answer == Answer::failed) {
    copy_unread(job, request.copy);
  } else if (!request.broken && request.answer != Answer::again) {
    copy_failed(job, request.copy, std::string(wire::answer_words(*request.answer)));
  }
  if (request.answer == Answer::again || request.answer == Answer::failed)
    job->again_us = config_.clock->now_us() + kAgainUs;
  wait(job);
}

void RemoteTier::copy_failed(const JobRef& job, std::size_t copy, const std::string& why) {
  held_.at(job->transfer.slot).valid[copy] = false;
  job->legs[copy] = Leg::failed;
  const std::string& address = nodes_[slot_of(job->transfer.slot).copies[copy].node].address;
  job->error = {VMEM_ERROR_LOST, 0, fmt::format("the copy of {} on {} is gone: {}", words(*job), address, why)};
  const std::lock_guard lock(mutex_);
  ++statistics_.copies_lost;
}

// The lender has it, and could not read it this time.
void RemoteTier::copy_unread(const JobRef& job, std::size_t copy) {
  if (job->tries[copy] < kTries) return;
  job->legs[copy] = Leg::failed;
  job->kept = true;
  const Copy at = slot_of(job->transfer.slot).copies[copy];
  const std::lock_guard lock(mutex_);
  job->error = {
      VMEM_ERROR_DRIVER, 0,
      fmt::format("{} could not read {}: {}", nodes_[at.node].address, words(*job), failure_words(at, Answer::failed))};
}

void RemoteTier::check(const JobRef& job, std::size_t copy) {
  const auto good = std::make_shared<bool>();
  ++job->under_way;
  workers_->post([this, job, good] { *good = aead_->recover(job->stored, job->page.identity(), job->proof); },
                 [this, job, copy, good](Workers::Ended how) {
                   --job->under_way;
                   if (how == Workers::Ended::done) return checked(job, copy, *good);
                   lacked_memory(*job, "check");
                   complete(job, Outcome::failed);
                 });
}

void RemoteTier::checked(const JobRef& job, std::size_t copy, bool good) {
  {
    const std::lock_guard lock(mutex_);
    (good ? statistics_.fetched_bytes : statistics_.checksum_failures) += good ? job->page.bytes : 1;
  }
  if (good) return complete(job, Outcome::done);
  // Asked once more, the lender looks itself: else a copy that is damaged would be found out when it is the last.
  job->doubted = copy;
  if (job->tries[copy] >= kTries) copy_failed(job, copy, "what arrives is something else every time");
  wait(job);
}

void RemoteTier::complete(const JobRef& job, Outcome outcome) {
  job->slab.reset();
  job->encrypted = {};
  tiers::Completion completion;
  completion.id = job->transfer.id;
  completion.outcome = outcome;
  completion.changed = job->transfer.if_changed && !job->same;
  if (outcome != Outcome::done) completion.error = job->error;
  {
    const std::lock_guard lock(mutex_);
    completions_.push_back(std::move(completion));
    --jobs_;
    changed_.notify_all();
  }
  if (config_.on_ready) config_.on_ready();
}

std::string RemoteTier::words(const Job& job) const {
  const std::uint64_t first = std::uint64_t{job.page.granule} * pagetable::kGranuleBytes;
  return fmt::format("the page at {:#x} to {:#x} of the address space, version {}", first, first + job.page.bytes,
                     job.page.version);
}

// ---- places that are not needed any more ----

void RemoteTier::take(const Release& release) {
  held_.erase(release.slot);
  for (const Copy& copy : release.places.copies) {
    Node& node = nodes_[copy.node];
    if (copy.lease == 0 || node.lease != copy.lease || node.state != Node::State::ready) continue;
    wire::PageAt at{.lease = copy.lease, .offset = copy.offset};
    at.page.version = 1;  // any; 0 is the lease
    request({.kind = wire::Kind::release, .node = copy.node, .job = nullptr}, wire::body_of(at));
  }
}

void RemoteTier::take(Farewell) {
  if (std::exchange(leaving_, true)) return;
  std::uint32_t said = 0;
  for (Node& node : nodes_) {
    if (node.state != Node::State::ready) continue;
    const wire::PageAt all{.lease = node.lease};
    request({.kind = wire::Kind::release, .node = index_of(node), .job = nullptr}, wire::body_of(all));
    ++said;
  }
  const std::lock_guard lock(mutex_);
  farewells_ = said;
  said_farewell_ = true;
  changed_.notify_all();
}

void RemoteTier::take(Hurry) { latest_us_ = config_.clock->now_us() + config_.request_us; }

}  // namespace vmem::rdma
