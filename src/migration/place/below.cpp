#include "migration/place/below.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "base/log.hpp"
#include "base/sizes.hpp"

namespace vmem::migration {

using pagetable::Access;
using pagetable::kNoFrame;
using tiers::Direction;

namespace {

constexpr std::uint32_t kLoadTries = 4;        // of a page, before a call fails
constexpr std::ptrdiff_t kMostForOthers = 16;  // loads of a queue
constexpr std::uint64_t kLoadPauseUs = 1'000;  // before the second try; then quadruples

}  // namespace

// ---- sources ----

void Below::add_source(Region& region, std::shared_ptr<tiers::PageSource> source, tiers::SlotId first) {
  for (std::uint32_t i = 0; i < region.page_count; ++i) {
    Page& page = region.pages[i];
    page.version = 1;
    page.spilled = std::make_unique<pagetable::SpilledCopy>();
    page.spilled->slot = first + i;
    page.spilled->version = 1;
  }
  sources_[&region] = std::move(source);
}

Status Below::check_writable(const Region& region) const {
  if (!region.read_only && !region.frozen()) return {};
  return fail(VMEM_ERROR_INVALID_VALUE,
              fmt::format("the memory at {:#x} is {}: it can be read, and not acquired for writing, copied to, filled "
                          "or written; copy it to memory of vmem_malloc and write there",
                          core_.config.space->address_of(region.first.index) + region.head_bytes,
                          region.read_only ? sources_.at(&region)->name() + ", mapped" : "published"));
}

std::uint64_t Below::source_metadata_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [region, source] : sources_) bytes += region->page_count * sizeof(pagetable::SpilledCopy);
  return bytes;
}

std::uint64_t Below::largest_file_page() const {
  std::uint64_t largest = 0;
  for (const auto& [region, source] : sources_) largest = std::max(largest, region->page_bytes());
  return largest;
}

bool Below::rescue(PageRef ref, const Error& why) {
  const auto found = rescues_.find(ref.region);
  Page& page = ref.page();
  if (found == rescues_.end() || !ref.region->frozen() || transfers_.busy_below(page)) return false;
  if (page.spilled == nullptr) page.spilled = std::make_unique<pagetable::SpilledCopy>();
  pagetable::SpilledCopy& copy = *page.spilled;
  if (copy.from_source) return false;
  if (std::has_single_bit(++rescued_))
    VMEM_LOG_WARN("the page at {:#x} is lost here, and asked for from other nodes that have {}: {} ({} such pages)",
                  core_.address_of(ref), found->second.source->name(), why.message, rescued_);
  drop(ref);
  copy.slot = found->second.first + ref.index;
  copy.version = ref.page().version;
  copy.trust = pagetable::SpilledCopy::Trust::verified;
  copy.from_source = true;
  return true;
}

// ---- slots ----

Result<Attempt> Below::need_slot(PageRef ref) {
  Page& page = ref.page();
  if (page.spilled == nullptr) page.spilled = std::make_unique<pagetable::SpilledCopy>();
  pagetable::SpilledCopy& copy = *page.spilled;
  if (copy.slot != kNoFrame) return Attempt::done;
  tiers::Tier& tier = *core_.config.spill;
  auto asked = tier.allocate(ref.bytes());
  const auto no_room = [&] {
    return asked ? asked->grant == tiers::Grant::full : asked.error().status == VMEM_ERROR_TIMEOUT;
  };
  if (no_room() && need_.may_look_for_copies() && release_copies(ref.bytes()) != 0) asked = tier.allocate(ref.bytes());
  if (no_room() && need_.ask_for_room(ref.bytes())) return Attempt::after_transfer;
  VMEM_ASSIGN(const tiers::SlotGrant grant, std::move(asked));
  if (grant.grant == tiers::Grant::later) return Attempt::after_transfer;
  if (grant.grant == tiers::Grant::full) {
    // Without the other tiers' usage: the caller adds that.
    return fail(VMEM_ERROR_OUT_OF_MEMORY,
                fmt::format("{} has no room for {} (it has {}, of which {} are in use)", tier.info().name,
                            format_bytes(ref.bytes()), format_bytes(tier.usage().budget_bytes),
                            format_bytes(tier.usage().used_bytes)));
  }
  copy.slot = grant.slot;
  copy.version = 0;
  if (!std::exchange(copy.listed, true)) copies_.push_back(ref);
  return Attempt::done;
}

// Releases outdated copies, and copies of pages that own a frame or have a current copy in near
// memory. Returns how many bytes of slots came free; stops at `bytes`.
std::uint64_t Below::release_copies(std::uint64_t bytes) {
  std::uint64_t released = 0;
  for (std::size_t left = copies_.size(); left > 0 && released < bytes; --left) {
    const PageRef ref = copies_.front();
    copies_.pop_front();
    if (!ref.live() || ref.page().spilled == nullptr) continue;
    Page& page = ref.page();
    page.spilled->listed = page.spilled->slot != kNoFrame;
    if (!page.spilled->listed) continue;
    const bool elsewhere = !page.spilled_current() || page.slot_current() || page.owns_frame();
    if (!elsewhere || transfers_.busy_below(page)) {
      copies_.push_back(ref);
      continue;
    }
    page.spilled->listed = false;
    drop(ref);
    released += ref.bytes();
  }
  return released;
}

void Below::drop(PageRef ref) {
  Page& page = ref.page();
  if (page.spilled == nullptr) return;
  page.spilled->version = 0;
  page.spilled->wanted = false;
  page.spilled->fingerprint.reset();
  page.spilled->route = pagetable::SpilledCopy::Route::direct;
  if (page.spilled->slot == kNoFrame || transfers_.busy_below(page) || ref.region->read_only) return;
  if (std::exchange(page.spilled->from_source, false)) {
    page.spilled->slot = kNoFrame;
    return;
  }
  core_.config.spill->release(std::exchange(page.spilled->slot, kNoFrame));
  pacing_.room_came();
}

void Below::distrust(Page& page) {
  if (page.spilled != nullptr) page.spilled->trust = pagetable::SpilledCopy::Trust::unverified;
}

std::uint64_t Below::metadata_bytes() const {
  return copies_.size() * (sizeof(pagetable::SpilledCopy) + sizeof(PageRef));
}

void Below::forget(const Region& region) {
  std::erase_if(copies_, [&](const PageRef& ref) { return ref.region == &region; });
  const PageId first{region.id, 0}, behind{{region.id.value + 1}, 0};
  load_failures_.erase(load_failures_.lower_bound(first), load_failures_.lower_bound(behind));
  sources_.erase(&region);
  rescues_.erase(&region);
}

// ---- transfers ----

std::uint32_t Below::queue_of(PageRef ref) const {
  constexpr std::uint32_t kOfFiles = 1u << 31;
  const std::uint32_t queue = abilities_of(ref).queue(ref.page().spilled->slot);
  return from_source(ref) ? queue | kOfFiles : queue;
}

void Below::hurry(PageRef ref) {
  const auto transfer = transfers_.find(ref.page().spilled->transfer);
  if (transfer == transfers_.end() || !std::exchange(transfer->second.ahead, false)) return;
  abilities_of(ref).hurry(transfer->first);
}

Status Below::submit(PageRef ref, Direction direction, Wanted wanted) {
  Page& page = ref.page();
  const bool store = direction == Direction::store;
  tiers::Transfer transfer = transfer_of(ref, direction);
  transfer.slot = page.spilled->slot;
  transfer.host = core_.config.in_place->host_address(page.slot, store ? Access::read : Access::write);
  transfer.kind = ref.region->id.value;
  transfer.if_changed = store && page.spilled_current();
  transfer.ahead = wanted == Wanted::later;
  InFlight entry = migration::in_flight(ref, direction, InFlight::Kind::spill, core_.now_us());
  entry.queue = queue_of(ref);
  entry.ahead = transfer.ahead;
  Transfers::Room room = Transfers::reserve(entry);
  transfer_begins(direction, entry.queue, ref.bytes());
  if (auto submitted = of(ref).submit({&transfer, 1}); !submitted) {
    transfer_ends(direction, entry.queue, ref.bytes());
    return submitted;
  }
  transfers_.enter(std::move(room), transfer);
  page.spilled->transfer = transfer.id;
  if (store) page.spilled->trust = pagetable::SpilledCopy::Trust::verified;
  core_.note(ref, store ? Happened::spilled : Happened::recalled);
  core_.worked = true;
  return {};
}

Result<std::uint32_t> Below::queue_for_others(PageRef ref) const {
  const std::uint32_t queue = queue_of(ref);
  const auto there = std::ranges::count(waiting_for_others_, queue, [](const auto& each) { return each.second; });
  if (there >= kMostForOthers)
    return fail(VMEM_ERROR_TIMEOUT,
                fmt::format("the page at {:#x} was not loaded for another node: {} such loads "
                            "wait for the same lender or disk already, the most that may; ask again",
                            core_.address_of(ref), there));
  return queue;
}

bool Below::loading_to_host() const {
  return std::ranges::any_of(transfers_, [](const auto& each) {
    return each.second.kind == InFlight::Kind::spill && each.second.direction == Direction::load;
  });
}

// The tier gave the page no slot, for whatever reason: pauses all stores.
void Below::store_refused(PageRef ref, const Error& error) {
  pacing_.refused(core_.now_us(), error);
  not_stored(ref, error);
}

void Below::store_failed(PageRef ref, const Error& error) {
  drop(ref);  // before pacing_.failed(): the release of this slot must not end that pause
  pacing_.failed(core_.now_us(), error);
  not_stored(ref, error);
}

// The page stays in host memory.
void Below::not_stored(PageRef ref, const Error& error) {
  if (ref.page().spilled != nullptr) {
    ref.page().spilled->version = 0;
    ref.page().spilled->fingerprint.reset();
  }
  if (!std::has_single_bit(++core_.counters.spill_failures)) return;
  VMEM_LOG_WARN("the page at {:#x} could not be written to {}, and stays in host memory: {} ({} such failures)",
                core_.address_of(ref), core_.config.spill->info().name, error.message, core_.counters.spill_failures);
}

Result<bool> Below::may_load_now(PageRef ref) {
  const auto failed = load_failures_.find(ref.id());
  if (failed == load_failures_.end()) return true;
  if (failed->second.version != ref.page().version) {
    load_failures_.erase(failed);
    return true;
  }
  if (failed->second.tries < kLoadTries) return core_.now_us() >= failed->second.again_at_us;
  Error error = std::move(failed->second.error);
  load_failures_.erase(failed);
  error.message = fmt::format("the page at {:#x} ({}) could not be read, and {} keeps it for another try: {}",
                              core_.address_of(ref), format_bytes(ref.bytes()), of(ref).info().name, error.message);
  return std::unexpected(std::move(error));
}

// The page stays below. After a timeout the same call does not try again.
void Below::load_failed(PageRef ref, const Error& error) {
  LoadFailure& failure = load_failures_[ref.id()];
  if (failure.version != ref.page().version) failure = {.error = {}, .version = ref.page().version};
  failure.tries = error.status == VMEM_ERROR_TIMEOUT ? kLoadTries : failure.tries + 1;
  failure.again_at_us = core_.now_us() + (kLoadPauseUs << 2 * std::min(failure.tries - 1, kLoadTries));
  failure.error = error;
  if (!std::has_single_bit(++core_.counters.load_failures)) return;
  VMEM_LOG_WARN("the page at {:#x} could not be read from {}, which keeps it: {} ({} such failures)",
                core_.address_of(ref), of(ref).info().name, error.message, core_.counters.load_failures);
}

}  // namespace vmem::migration
