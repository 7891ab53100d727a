#include "runtime/cluster/publishing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <span>
#include <utility>

#include "base/log.hpp"
#include "base/memory_reserve.hpp"
#include "runtime/memory/addresses.hpp"
#include "tiers/stacked_tier.hpp"

namespace vmem::runtime {

using cluster::directory::RegionRecord;
using cluster::directory::Run;
using cluster::directory::Runs;
using cluster::directory::Serial;
using pagetable::Region;

namespace {

// Of the stack of tiers that read-only regions come from: files, then published regions.
constexpr std::size_t kSharedTier = 1;
constexpr std::uint64_t kLeaveUs = 2'000'000;
constexpr std::uint64_t kLongestUs = 3'600'000'000;  // of one wait: later ones go on

pagetable::Serial page_serial(Serial serial) { return pagetable::Serial{static_cast<std::uint64_t>(serial)}; }

// The pages that are not among the unwritten ones, which ascend; the first page if there are none:
// somebody has to keep a page, for others to know that the rest is zero.
Runs written_of(std::uint32_t pages, const std::vector<std::uint32_t>& unwritten) {
  Runs runs;
  std::uint32_t from = 0;
  const auto add = [&](std::uint32_t to) {
    if (to > from) runs.push_back({.first = from, .count = to - from});
    from = to + 1;
  };
  for (const std::uint32_t page : unwritten) add(page);
  add(pages);
  if (runs.empty()) runs.push_back({.first = 0, .count = 1});
  return runs;
}

std::uint64_t count(const Runs& runs) {
  std::uint64_t sum = 0;
  for (const Run& run : runs) sum += run.count;
  return sum;
}

// The key of a region whose record this version can use.
Result<std::shared_ptr<const sharing::RegionKey>> key_of(const RegionRecord& record) {
  constexpr std::size_t kKeyBytes = sharing::RegionKey::kBytes;
  if (record.key.size() != kKeyBytes || !std::has_single_bit(record.page_bytes) ||
      record.page_bytes < pagetable::kGranuleBytes || record.first_granule + record.granules > UINT32_MAX)
    return fail(VMEM_ERROR_INVALID_VALUE,
                fmt::format("the published region '{}' has a record that this version of vmem cannot use; publish and "
                            "open it with the same version",
                            record.name));
  const auto* const secret = reinterpret_cast<const unsigned char*>(record.key.data());
  VMEM_ASSIGN(sharing::RegionKey made,
              sharing::RegionKey::of(std::span<const unsigned char, kKeyBytes>(secret, kKeyBytes)));
  return std::make_shared<const sharing::RegionKey>(std::move(made));
}

// That something else is at its addresses the address space calls IN_USE.
Error unmapped(const pagetable::AddressSpace& space, const RegionRecord& record, const Error& why) {
  if (why.status != VMEM_ERROR_IN_USE && why.status != VMEM_ERROR_ADDRESS_SPACE) return why;
  const std::uint64_t first = space.address_of(std::uint32_t(record.first_granule));
  const std::uint64_t last = first + (record.granules << pagetable::kGranuleShift) - 1;
  return {VMEM_ERROR_ADDRESS_SPACE, why.native,
          fmt::format("the published region '{}' could not be opened at its addresses, {:#x} to {:#x}: {}", record.name,
                      first, last, why.message)};
}

}  // namespace

Publishing::Publishing(const Parts& parts)
    : parts_(parts),
      pages_({.devices = parts.devices, .mover = parts.mover},
             {.gone = [this](const sharing::SharedPage& page) { directory().gone(page); }}) {
  parts_.remote.joint()->serve(pages_);
  parts_.remote.tell(this);
}

Publishing::~Publishing() {
  leave();
  parts_.remote.tell(nullptr);
  parts_.remote.joint()->stop_serving();
  for (const auto& request : posted_) (void)request->wait();
}

void Publishing::leave() {
  if (std::exchange(left_, true)) return;
  (void)directory().leave(kLeaveUs);  // the homes log what is lost
}

// ---- turns ----

Publishing::Deadline::Deadline(std::uint64_t wait_us)
    : at_us_(clock_.now_us() + std::min(wait_us, UINT64_MAX - clock_.now_us())) {}

std::uint64_t Publishing::Deadline::left_us() const {
  const std::uint64_t now_us = clock_.now_us();
  return at_us_ > now_us ? at_us_ - now_us : 0;
}

Publishing::Turn::~Turn() {
  if (of_ == nullptr) return;
  const std::lock_guard lock(of_->mutex_);
  of_->at_work_.erase(serial_);
  of_->turn_ended_.notify_all();
}

Result<Publishing::Turn> Publishing::wait_for_turn(Serial serial, const std::string& name, const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  while (at_work_.contains(serial)) {
    const std::uint64_t left_us = std::min(deadline.left_us(), kLongestUs);
    if (left_us == 0)
      return fail(VMEM_ERROR_TIMEOUT, fmt::format("the published region '{}' could not be opened in time: another "
                                                  "thread publishes, opens or closes it; try again",
                                                  name));
    turn_ended_.wait_for(lock, std::chrono::microseconds(left_us));
  }
  at_work_.insert(serial);
  return Turn(*this, serial);
}

// ---- publishing ----

// All that other nodes are asked for comes before the freeze: a region that cannot be announced
// stays writable.
Status Publishing::publish(void* pointer, const Order& order) {
  const Deadline deadline(order.wait_us);
  VMEM_ASSIGN(Region* const region, whole_allocation(pointer));
  VMEM_ASSIGN(const std::uint64_t number, member().take_serial(order.wait_us));
  VMEM_ASSIGN(sharing::RegionKey made, sharing::RegionKey::create());
  const auto key = std::make_shared<const sharing::RegionKey>(std::move(made));
  for (const cluster::Slice slice : slices_of(*region)) VMEM_TRY(member().keep(slice));
  const Joint joint{.serial = Serial{number},
                    .name = order.name,
                    .tenant = parts_.remote.tenant(),
                    .readers = order.readers,
                    .region = region,
                    .outcome = {}};
  VMEM_ASSIGN(const Turn turn, wait_for_turn(joint.serial, joint.name, deadline));
  migration::FreezeRequest freeze;
  freeze.region = region;
  freeze.first_granule = region->first.index;
  VMEM_TRY(parts_.mover.call(freeze));
  const auto undo = [&](Region*) { withdraw(joint); };
  std::unique_ptr<Region, decltype(undo)> undone(region, undo);  // memory may run out, too
  {
    const std::lock_guard lock(mutex_);
    joint_.insert_or_assign(region->first.index, joint);
  }
  serve(joint, key);
  const auto secret = key->bytes();
  const auto published =
      directory().publish({.serial = joint.serial,
                           .name = order.name,
                           .key = std::string(reinterpret_cast<const char*>(secret.data()), secret.size()),
                           .first_granule = region->first.index,
                           .granules = region->granules,
                           .page_bytes = region->page_bytes(),
                           .bytes = region->bytes,
                           .copies = order.copies,
                           .expires_s = order.expires_s,
                           .readers = order.readers,
                           .written = written_of(region->page_count, freeze.unwritten)},
                          deadline.left_us());
  if (published.done) {
    (void)undone.release();
    (void)ran_within_memory([&] { rescue_by_copies(joint, key); });  // it is published without, too
    return published.status;
  }
  const Error& why = published.status.error();
  return fail(why.status, fmt::format("{}; its memory is writable again", why.message));
}

// From now on a page that a disk or a lender has lost is loaded from nodes that have copies.
void Publishing::rescue_by_copies(const Joint& joint, const Key& key) {
  auto source = parts_.remote.joint()->tier().open({.name = joint.name,
                                                    .serial = page_serial(joint.serial),
                                                    .bytes = joint.region->bytes,
                                                    .page_bytes = joint.region->page_bytes(),
                                                    .first_granule = joint.region->first.index,
                                                    .own = true,
                                                    .key = key});
  migration::RescueRequest rescue;
  rescue.region = joint.region;
  rescue.first_granule = joint.region->first.index;
  rescue.source = tiers::StackedTier::source_of(kSharedTier, std::move(source));
  if (const Status added = parts_.mover.call(rescue); !added)
    VMEM_LOG_WARN("pages of '{}' that this node loses are not fetched from others: {}", joint.name,
                  added.error().message);
}

Result<Region*> Publishing::whole_allocation(const void* pointer) const {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  VMEM_ASSIGN(Region* const region, live_region(parts_.space, address));
  const char* const wrong = region->slab                                ? "it shares pages with other small allocations"
                            : region->undeclared                        ? "it is not from vmem_malloc"
                            : base_of(parts_.space, *region) != address ? "it is inside of an allocation"
                                                                        : nullptr;
  if (wrong == nullptr) return region;
  return fail(VMEM_ERROR_INVALID_VALUE,
              fmt::format("{:#x} was to be published, and {}: publish an allocation of more than 1 MiB, by the "
                          "pointer that vmem_malloc gave",
                          address, wrong));
}

// What was not published after all is as it was before.
void Publishing::withdraw(const Joint& joint) {
  pages_.remove(page_serial(joint.serial));
  {
    const std::lock_guard lock(mutex_);
    joint_.erase(joint.region->first.index);
  }
  migration::ThawRequest thaw;
  thaw.region = joint.region;
  thaw.first_granule = joint.region->first.index;
  if (const Status thawed = parts_.mover.call(thaw); !thawed)
    VMEM_LOG_ERROR("memory that could not be published as '{}' stays read-only: {}", joint.name,
                   thawed.error().message);
}

std::vector<cluster::Slice> Publishing::slices_of(const Region& region) const {
  const std::uint64_t granules = member().parameters().slice_bytes >> pagetable::kGranuleShift;
  std::vector<cluster::Slice> slices;
  for (std::uint64_t slice = region.first.index / granules; slice <= (region.end_granule() - 1) / granules; ++slice)
    slices.push_back(cluster::Slice(slice));
  return slices;
}

void Publishing::serve(const Joint& joint, Key key) {
  pages_.add(page_serial(joint.serial),
             {.region = joint.region, .key = std::move(key), .tenant = joint.tenant, .readers = joint.readers});
}

Publishing::Opened Publishing::opened(const Joint& joint) const {
  return {.pointer = reinterpret_cast<void*>(base_of(parts_.space, *joint.region)), .bytes = joint.region->bytes};
}

// REQUIRES: mutex_ is held.
Publishing::Joint* Publishing::find(Serial serial) {
  const auto found = std::ranges::find_if(joint_, [&](const auto& each) { return each.second.serial == serial; });
  return found == joint_.end() ? nullptr : &found->second;
}

bool Publishing::has(Serial serial) {
  const std::lock_guard lock(mutex_);
  return find(serial) != nullptr;
}

// ---- opening and closing ----

// What is found may be closed by another thread until this one has its turn, so it is opened again
// then. By then the name may mean a later version.
Result<Publishing::Opened> Publishing::open(const std::string& name, int device, std::uint64_t wait_us) {
  const Deadline deadline(wait_us);
  VMEM_ASSIGN(const int index, parts_.devices.index_of(device));
  for (;;) {
    VMEM_ASSIGN(const RegionRecord found, directory().open(name, deadline.left_us()));
    VMEM_ASSIGN(const Turn turn, wait_for_turn(found.serial, name, deadline));
    const auto record = directory().open(name, deadline.left_us());
    const bool same = record && record->serial == found.serial;
    const auto opened = same ? enter(*record, index) : std::unexpected(record ? Error{} : record.error());
    if (opened) return opened;
    if (!has(found.serial)) (void)directory().close(found.serial, deadline.left_us());
    if (same || !record) return opened;
  }
}

// REQUIRES: the directory has it open, and this thread its turn.
Result<Publishing::Opened> Publishing::enter(const RegionRecord& record, int device) {
  VMEM_ASSIGN(const Key key, key_of(record));
  {
    const std::lock_guard lock(mutex_);
    if (Joint* const there = find(record.serial)) {
      // Whose closing has failed meanwhile is to close again, as one of several.
      if (there->let_go) serve(*there, key);
      there->let_go = false;
      ++there->times;
      return opened(*there);
    }
  }
  VMEM_ASSIGN(const Joint joint, map(record, key, device));
  return opened(joint);
}

Result<Publishing::Joint> Publishing::map(const RegionRecord& record, const Key& key, int device) {
  auto source = parts_.remote.joint()->open({.name = record.name,
                                             .serial = page_serial(record.serial),
                                             .bytes = record.bytes,
                                             .page_bytes = record.page_bytes,
                                             .first_granule = std::uint32_t(record.first_granule),
                                             .earlier = page_serial(record.earlier),
                                             .key = key});
  const auto mapped = parts_.regions.map(tiers::StackedTier::source_of(kSharedTier, std::move(source)), device);
  if (!mapped) return std::unexpected(unmapped(parts_.space, record, mapped.error()));
  Region* const region = *mapped;
  Joint joint{.serial = record.serial,
              .name = record.name,
              .tenant = record.tenant,
              .readers = record.readers,
              .region = region,
              .outcome = {}};
  {
    const std::lock_guard lock(mutex_);
    joint_.insert_or_assign(region->first.index, joint);
  }
  serve(joint, key);
  return joint;
}

Status Publishing::close(void* pointer, vmem_stream stream, std::uint64_t wait_us) {
  const Deadline deadline(wait_us);
  VMEM_ASSIGN(Joint joint, begin_closing(pointer, stream));
  if (joint.times != 0) return {};
  const Turn turn(*this, joint.serial);
  if (!joint.let_go) joint.outcome = let_go(joint, deadline.left_us());
  joint.let_go = true;
  const std::uint32_t first = joint.region->first.index;
  const Status closed = parts_.regions.close(*joint.region, first, stream);
  const std::lock_guard lock(mutex_);
  joint.times = 1;
  const auto found = joint_.find(first);
  // Or else it is the next region at these addresses.
  const bool same = found != joint_.end() && found->second.serial == joint.serial;
  if (same && closed) joint_.erase(found);
  if (same && !closed) found->second = joint;
  return closed ? joint.outcome : closed;
}

// What is to be closed: now, by the caller, whose turn it is (0 times open), or by other calls.
Result<Publishing::Joint> Publishing::begin_closing(void* pointer, vmem_stream stream) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  VMEM_ASSIGN(Region* const region, live_region(parts_.space, address));
  const std::lock_guard lock(mutex_);
  const auto found = joint_.find(region->first.index);
  if (found == joint_.end() || base_of(parts_.space, *region) != address)
    return fail(VMEM_ERROR_INVALID_POINTER,
                fmt::format("{:#x} was to be closed, and is not what vmem_open gave, or what was published; free "
                            "other memory by vmem_free",
                            address));
  Joint& joint = found->second;
  if (joint.times > 1) {
    Joint others = joint;
    others.times = --joint.times;
    return others;
  }
  VMEM_TRY(parts_.regions.check_stream(stream));
  if (parts_.slots.registry().overlapping_holds(region->first.index, region->end_granule()).named != 0)
    return fail(VMEM_ERROR_IN_USE, fmt::format("the published region '{}' has ranges that are still acquired; release "
                                               "them first",
                                               joint.name));
  if (!at_work_.insert(joint.serial).second)
    return fail(VMEM_ERROR_IN_USE, fmt::format("the published region '{}' was to be closed, and another thread "
                                               "publishes, opens or closes it; close it again later",
                                               joint.name));
  Joint last = joint;
  last.times = 0;
  return last;
}

// Others may fetch pages from here until the directory has let go.
Status Publishing::let_go(const Joint& joint, std::uint64_t wait_us) {
  const auto lost = directory().close(joint.serial, wait_us);
  pages_.remove(page_serial(joint.serial));
  // INVALID_VALUE: the cluster has closed it here, and this node kept nothing of it, or it was
  // removed.
  if (!lost && lost.error().status != VMEM_ERROR_INVALID_VALUE) return std::unexpected(lost.error());
  if (!lost || lost->empty()) return {};
  return fail(
      VMEM_ERROR_LOST,
      fmt::format("the published region '{}' is closed, and no other node is known to have {} of its pages: {}; "
                  "publish with copies, or let others open it before",
                  joint.name, count(*lost), words_of(*lost)));
}

Status Publishing::add_to(vmem_published_statistics& out) const {
  migration::StatisticsRequest request;
  VMEM_TRY(parts_.mover.call(request));
  out.cached_bytes = request.published.bytes;
  out.cache_limit_bytes = request.published.quota_bytes;
  out.dropped_pages = request.published.dropped_pages;
  out.dropped_bytes = request.published.dropped_bytes;
  if (const sharing::DiskCopies* const copies = parts_.remote.joint()->copies()) {
    const sharing::DiskCopies::Statistics on_disk = copies->statistics();
    out.disk_cached_bytes = on_disk.bytes;
    out.disk_cache_limit_bytes = on_disk.limit_bytes;
    out.disk_stored_pages = on_disk.stored_pages;
    out.disk_loaded_pages = on_disk.loaded_pages;
  }
  const sharing::PageServer::Statistics sent = parts_.remote.joint()->served();
  const sharing::SharedCounters came = parts_.remote.joint()->tier().statistics();
  out.sent_pages = sent.pages;
  out.sent_bytes = sent.bytes;
  out.same_pages = sent.same;
  out.refused_requests = sent.refused;
  out.fetched_pages = came.pages;
  out.fetched_bytes = came.bytes;
  out.reused_pages = came.reused;
  out.retries = came.retries;
  out.mismatches = came.mismatches;
  const std::lock_guard lock(mutex_);
  for (const auto& [first, joint] : joint_) ++(joint.region->read_only ? out.opened_regions : out.published_regions);
  return {};
}

// ---- the node's thread, and the member's ----

void Publishing::range_freed(std::uint32_t first, std::uint32_t count) {
  auto grant = std::make_unique<migration::GrantRequest>();
  grant->first = first;
  grant->count = count;
  post(std::move(grant));
}

void Publishing::slices_lost(const std::vector<cluster::Slice>& slices) {
  const auto granules = std::uint32_t(member().parameters().slice_bytes >> pagetable::kGranuleShift);
  for (const cluster::Slice slice : slices) {
    auto retire = std::make_unique<migration::RetireRequest>();
    retire->first = static_cast<std::uint32_t>(slice) * granules;
    retire->count = granules;
    post(std::move(retire));
  }
}

void Publishing::post(std::unique_ptr<migration::Request> request) {
  const std::lock_guard lock(posting_);
  std::erase_if(posted_, [](const auto& each) {
    if (!each->done()) return false;
    if (const Status& result = each->wait(); !result)  // until the mover has left it
      VMEM_LOG_WARN("addresses of this node could not be granted to it, or taken from it: {}", result.error().message);
    return true;
  });
  parts_.mover.post(*posted_.emplace_back(std::move(request)));
}

}  // namespace vmem::runtime
