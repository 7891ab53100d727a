#include "sharing/disk_copies.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <system_error>
#include <utility>

#include "base/memory_reserve.hpp"
#include "sharing/copy_faces.hpp"

namespace vmem::sharing {

using tiers::CameFrom;
using tiers::Completion;
using tiers::Direction;
using tiers::Finished;
using tiers::Grant;
using tiers::Outcome;
using tiers::SlotGrant;
using tiers::SlotId;
using tiers::Transfer;

namespace {

constexpr std::uint64_t kPauseUs = 1'000'000;
constexpr std::uint32_t kMostRemoved = 256;  // copies, for one page of the program

}  // namespace

DiskCopies::DiskCopies(tiers::Tier& source, tiers::Tier& disk, const Clock& clock, Config config)
    : source_(source),
      disk_(disk),
      source_abilities_(&source),
      disk_abilities_(&disk),
      clock_(clock),
      config_(std::move(config)),
      inbox_([this] {
        if (config_.on_ready) config_.on_ready();
      }),
      sources_face_(std::make_unique<SourcesFace>(*this)),
      disks_face_(std::make_unique<DisksFace>(*this)) {}

DiskCopies::~DiskCopies() {
  finish();
  quarantined_ ? (void)outgoing_.release() : outgoing_.reset();
  loads_.clear();
  list_ = CopyList();
  release_dropped();
}

tiers::Tier& DiskCopies::sources() { return *sources_face_; }
tiers::Tier& DiskCopies::disks() { return *disks_face_; }

std::shared_ptr<tiers::PageSource> DiskCopies::keep(std::shared_ptr<tiers::PageSource> source) {
  return std::make_shared<Source>(*this, std::move(source));
}

DiskCopies::Statistics DiskCopies::statistics() const {
  const std::lock_guard lock(mutex_);
  Statistics now = counted_;
  now.bytes = list_.bytes();
  now.limit_bytes = limit();
  now.metadata_bytes = list_.metadata_bytes();
  return now;
}

// What the program's pages leave of the part that copies may take.
std::uint64_t DiskCopies::limit() const {
  const tiers::TierUsage disk = disk_.usage();
  const std::uint64_t own = disk.used_bytes - std::min(disk.used_bytes, held_bytes_.load());
  const std::uint64_t part = disk.budget_bytes - disk.budget_bytes / kFreePart;
  return std::min(config_.limit_bytes, part - std::min(part, own));
}

bool DiskCopies::idle() const {
  return loads_.empty() && held_bytes_.load() == 0 && (outgoing_ == nullptr || outgoing_->stores.empty());
}

// ---- loads ----

Status DiskCopies::submit_load(Transfer& transfer) {
  Load load;
  load.transfer = transfer;
  load.transfer.id = tiers::next_transfer_id();
  const std::uint64_t id = load.transfer.id;
  const CopyList::Copy* const copy = list_.find(transfer.slot);
  if (copy != nullptr && copy->stored) load.copy = copy->place;
  const Place first = load.copy ? rule_.first_place(now_us()) : Place::nodes;
  Status started = start(load, first);
  if (!started && first == Place::disks) started = start(std::move(load), Place::nodes);
  if (started) transfer.id = id;
  return started;
}

Status DiskCopies::start(Load load, Place place) {
  Transfer transfer = load.transfer;
  transfer.id = 0;
  if (place == Place::disks) transfer.slot = *load.copy;
  (place == Place::disks ? load.tried_disks : load.tried_nodes) = true;
  load.at = place;
  load.begun = rule_.begins(place, transfer.bytes, now_us());
  const auto begun = load.begun;
  auto entry = loads_.extract(loads_.emplace(0, std::move(load)).first);  // the last that may throw
  if (auto submitted = (place == Place::disks ? disk_ : source_).submit({&transfer, 1}); !submitted) {
    rule_.ended(begun, false, now_us());
    return submitted;
  }
  entry.key() = transfer.id;
  loads_.insert(std::move(entry));
  return {};
}

// After the other place has failed.
bool DiskCopies::follow(const Load& load, Place place) {
  bool started = false;
  (void)ran_within_memory([&] { started = start(load, place).has_value(); });
  return started;
}

void DiskCopies::load_ended(Load load, Completion completion) {
  const bool done = completion.outcome == Outcome::done;
  rule_.ended(load.begun, done && completion.came_from != CameFrom::here, now_us());
  if (load.at == Place::nodes) {
    if (done) return fetched(load, std::move(completion));
    load.of_nodes = std::move(completion);
    if (!load.copy || load.tried_disks || !follow(load, Place::disks)) give_up(load);
    return;
  }
  if (done) {
    list_.load(load.transfer.slot);
    ++counted_.loaded_pages;
    return give(load, std::move(completion));
  }
  disk_load_failed(load, completion);
  if (load.tried_nodes || !follow(load, Place::nodes)) give_up(load);
}

// The copy is dropped if it is damaged, or its directory is unreadable.
void DiskCopies::disk_load_failed(Load& load, const Completion& completion) {
  load.disk_error = completion.error;
  if (completion.outcome != Outcome::lost && !disk_abilities_.degraded(*load.copy)) return;
  const CopyList::Copy* const copy = list_.find(load.transfer.slot);
  if (copy != nullptr && copy->place == load.copy) list_.remove(load.transfer.slot);
  load.copy.reset();
}

// A page is lost only if no node has it and no copy is left here.
void DiskCopies::give_up(const Load& load) {
  Completion failed;
  if (load.of_nodes) failed = *load.of_nodes;
  const bool unread = failed.outcome == Outcome::lost && load.copy != nullptr;
  if (!load.of_nodes || unread) failed = {.id = 0, .outcome = Outcome::failed, .error = load.disk_error};
  give(load, std::move(failed));
}

void DiskCopies::fetched(const Load& load, Completion completion) {
  const std::uint64_t before = list_.load(load.transfer.slot);
  const bool moved = completion.came_from != CameFrom::here;
  bool copying = false;
  if (moved && list_.find(load.transfer.slot) == nullptr)
    (void)ran_within_memory([&] { copying = begin_copy(load, completion, before); });
  if (!copying) give(load, std::move(completion));
}

void DiskCopies::give(const Load& load, Completion completion) {
  completion.id = load.transfer.id;
  to_sources_.push_back(std::move(completion));
}

// ---- copies ----

// For the first copy. False: the system has no thread now.
bool DiskCopies::get_ready() {
  if (!outgoing_) outgoing_ = std::make_unique<Outgoing>();
  if (workers_) return true;
  try {
    workers_ = std::make_unique<tiers::Workers>("vmem-copies", config_.workers,
                                                [this](tiers::Inbox::Task task) { inbox_.post(std::move(task)); });
  } catch (const std::system_error&) {
    paused_until_us_ = now_us() + kPauseUs;
  }
  return workers_ != nullptr;
}

// True: the load ends when its page is in staging memory. Throws std::bad_alloc, without a change.
bool DiskCopies::begin_copy(const Load& load, const Completion& completion, std::uint64_t loaded_before) {
  const bool last = completion.came_from == CameFrom::last_source;
  if (now_us() < paused_until_us_ || !rule_.admits({.fetched_before = loaded_before != 0, .last_source = last}))
    return false;
  const std::uint64_t bytes = load.transfer.bytes;
  if (!get_ready()) return false;
  std::list<Store> entry(1);
  const StoreRef store = entry.begin();
  store->buffer = outgoing_->staging.take(bytes);
  if (!store->buffer || !make_room(bytes, loaded_before)) return false;
  store->transfer = load.transfer;
  store->transfer.direction = Direction::store;
  store->transfer.host = store->buffer.data();
  store->transfer.id = 0;
  store->page = load.transfer.slot;
  store->loaded_before = loaded_before;
  store->ticket = list_.add(store->page, bytes).ticket;
  outgoing_->stores.splice(outgoing_->stores.end(), entry);
  Completion ended = completion;
  ended.id = load.transfer.id;
  const std::byte* const from = load.transfer.host;
  std::byte* const to = store->transfer.host;
  const bool posted = ran_within_memory([&] {
    workers_->post([from, to, bytes](std::uint32_t) { std::memcpy(to, from, bytes); },
                   [this, store, ended](tiers::Workers::Ended how) mutable {
                     to_sources_.push_back(std::move(ended));
                     how == tiers::Workers::Ended::done ? copied(store) : abandon(store);
                   });
  });
  if (!posted) abandon(store);
  return posted;
}

void DiskCopies::copied(StoreRef store) {
  store->state = Store::State::waits_for_slot;
  advance(store);
}

void DiskCopies::advance(StoreRef store) {
  const CopyList::Copy* const copy = list_.find(store->page);
  if (copy == nullptr || copy->ticket != store->ticket) return abandon(store);  // not wanted
  bool goes_on = false;
  if (now_us() >= paused_until_us_) (void)ran_within_memory([&] { goes_on = take_slot(store); });
  if (!goes_on) give_up_copies(store);
}

// For a while no page gets a copy.
void DiskCopies::give_up_copies(StoreRef store) {
  paused_until_us_ = now_us() + kPauseUs;
  abandon(store);
}

// True: it is being written, or waits for a slot. Throws std::bad_alloc.
bool DiskCopies::take_slot(StoreRef store) {
  auto slot = std::make_unique<Held>();
  auto grant = disk_slot(store->transfer.bytes);
  while (grant && grant->grant == Grant::full && remove_eldest_before(store->loaded_before))
    grant = disk_slot(store->transfer.bytes);
  if (!grant || grant->grant == Grant::full) return false;
  if (grant->grant == Grant::later) return true;
  *slot = {.slot = grant->slot, .bytes = store->transfer.bytes};
  return write(store, held(std::move(slot)));
}

DiskSlot DiskCopies::held(std::unique_ptr<Held> slot) {
  held_bytes_ += slot->bytes;
  const std::shared_ptr<Held> owner(slot.release(), [this](Held* of) { of->next = std::exchange(dropped_, of); });
  return {owner, &owner->slot};
}

Result<SlotGrant> DiskCopies::disk_slot(std::uint64_t bytes) {
  release_dropped();
  return disk_.allocate(bytes);
}

void DiskCopies::release_dropped() {
  while (dropped_ != nullptr) {
    const std::unique_ptr<Held> held(std::exchange(dropped_, dropped_->next));
    held_bytes_ -= held->bytes;
    if (!finished_) disk_.release(held->slot);
  }
}

bool DiskCopies::write(StoreRef store, DiskSlot place) {
  store->transfer.slot = *place;
  if (!disk_.submit({&store->transfer, 1})) return false;
  store->state = Store::State::writing;
  store->place = place;
  list_.find(store->page)->place = std::move(place);
  return true;
}

void DiskCopies::abandon(StoreRef store) {
  const CopyList::Copy* const copy = list_.find(store->page);
  if (copy != nullptr && copy->ticket == store->ticket) list_.remove(store->page);
  outgoing_->stores.erase(store);
}

void DiskCopies::stored(StoreRef store, bool done) {
  if (!done) return give_up_copies(store);
  CopyList::Copy* const copy = list_.find(store->page);
  if (copy != nullptr && copy->ticket == store->ticket) copy->stored = true;
  ++counted_.stored_pages;
  outgoing_->stores.erase(store);
}

// Within the limit, for a page that was loaded before at `loaded_before`.
bool DiskCopies::make_room(std::uint64_t bytes, std::uint64_t loaded_before) {
  const std::uint64_t most = limit();
  if (bytes > most) return false;
  while (list_.bytes() + bytes > most) {
    if (!remove_eldest_before(loaded_before)) return false;
  }
  return true;
}

// A page takes the place of a copy that was not loaded since that page was: so a scan of more than
// the disks hold keeps the copies that it has, instead of replacing each before its turn comes.
bool DiskCopies::remove_eldest_before(std::uint64_t load) {
  const auto eldest = list_.eldest();
  if (!eldest) return false;
  const CopyList::Copy& copy = *list_.find(*eldest);
  if (copy.loaded >= load || !copy.stored || copy.place.use_count() > 1) return false;
  list_.remove(*eldest);
  return true;
}

// Returns its bytes. The slot comes free when no transfer uses it any more. REQUIRES: a copy.
std::uint64_t DiskCopies::remove_eldest() {
  const SlotId page = *list_.eldest();
  const std::uint64_t bytes = list_.find(page)->bytes;
  list_.remove(page);
  return bytes;
}

// ---- both tiers ----

// For a page of the program.
Result<SlotGrant> DiskCopies::allocate(std::uint64_t page_bytes) {
  if (idle()) return disk_.allocate(page_bytes);
  VMEM_TRY(collect_disk());
  std::uint32_t removed = 0;
  const std::uint64_t most = limit();
  for (; removed < kMostRemoved && list_.bytes() != 0 && list_.bytes() + page_bytes > most; ++removed) remove_eldest();
  VMEM_ASSIGN(SlotGrant grant, disk_slot(page_bytes));
  // No new copy takes what comes free.
  if (grant.grant == Grant::full) paused_until_us_ = now_us() + kPauseUs;
  while (grant.grant == Grant::full && list_.bytes() != 0 && removed < kMostRemoved) {
    for (std::uint64_t bytes = 0; bytes < page_bytes && list_.bytes() != 0; ++removed) bytes += remove_eldest();
    VMEM_ASSIGN(grant, disk_slot(page_bytes));
  }
  // More copies go at the next call, or when a transfer has ended.
  if (grant.grant == Grant::full && held_bytes_.load() != 0) grant.grant = Grant::later;
  return grant;
}

// Loads of the program's pages tell the disks' rate, too.
Status DiskCopies::submit_own(std::span<Transfer> transfers) {
  if (!list_.any_region()) return disk_.submit(transfers);
  for (Transfer& transfer : transfers) transfer.id = 0;
  for (Transfer& transfer : transfers) {
    VMEM_TRY(disk_.submit({&transfer, 1}));
    if (transfer.direction == Direction::store) continue;
    const auto begun = rule_.begins(Place::disks, transfer.bytes, now_us());
    if (!ran_within_memory([&] { own_loads_.emplace(transfer.id, begun); })) rule_.ended(begun, false, now_us());
  }
  return {};
}

Status DiskCopies::collect_disk() {
  if (idle() && own_loads_.empty()) return disk_.poll(to_disks_);
  const Status polled = disk_.poll(polled_);
  for (Completion& completion : std::exchange(polled_, {})) disk_ended(std::move(completion));
  inbox_.run();
  release_dropped();
  if (!outgoing_) return polled;
  for (auto each = outgoing_->stores.begin(); each != outgoing_->stores.end();) {
    const StoreRef store = each++;  // which may go
    if (store->state == Store::State::waits_for_slot) advance(store);
  }
  return polled;
}

void DiskCopies::disk_ended(Completion completion) {
  if (auto load = loads_.extract(completion.id)) return load_ended(std::move(load.mapped()), std::move(completion));
  const bool done = completion.outcome == Outcome::done;
  if (outgoing_) {
    const auto is_this = [&](const Store& each) { return each.transfer.id == completion.id; };
    const auto store = std::ranges::find_if(outgoing_->stores, is_this);
    if (store != outgoing_->stores.end()) return stored(store, done);
  }
  if (const auto own = own_loads_.extract(completion.id)) rule_.ended(own.mapped(), done, now_us());
  to_disks_.push_back(std::move(completion));
}

Status DiskCopies::collect_source() {
  const Status polled = source_.poll(polled_);
  for (Completion& completion : std::exchange(polled_, {})) {
    if (auto load = loads_.extract(completion.id)) {
      load_ended(std::move(load.mapped()), std::move(completion));
    } else {
      to_sources_.push_back(std::move(completion));
    }
  }
  return polled;
}

// The worker reads host memory of pages, and the disks read staging memory.
Finished DiskCopies::finish() noexcept {
  workers_.reset();
  const Finished disk = disk_.finish();
  const std::lock_guard lock(mutex_);
  finished_ = true;
  quarantined_ = disk == Finished::quarantined;
  return disk;
}

}  // namespace vmem::sharing
