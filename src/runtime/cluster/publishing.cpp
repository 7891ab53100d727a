#include "runtime/cluster/publishing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include "runtime/memory/addresses.hpp"
#include "tiers/stacked_tier.hpp"

namespace vmem::runtime {

using cluster::directory::RegionRecord;
using cluster::directory::Run;
using cluster::directory::Runs;
using pagetable::Region;

namespace {

// Of the stack of tiers that read-only regions come from: files, then published regions.
constexpr std::size_t kSharedTier = 1;
constexpr std::uint64_t kLeaveUs = 2'000'000;

pagetable::Serial page_serial(cluster::directory::Serial serial) {
  return pagetable::Serial{static_cast<std::uint64_t>(serial)};
}

// The pages that are not among the unwritten ones, which ascend.
Runs written_of(std::uint32_t pages, const std::vector<std::uint32_t>& unwritten) {
  Runs runs;
  std::uint32_t from = 0;
  const auto add = [&](std::uint32_t to) {
    if (to > from) runs.push_back({.first = from, .count = to - from});
    from = to + 1;
  };
  for (const std::uint32_t page : unwritten) add(page);
  add(pages);
  return runs;
}

std::uint64_t count(const Runs& runs) {
  std::uint64_t sum = 0;
  for (const Run& run : runs) sum += run.count;
  return sum;
}

}  // namespace

Publishing::Publishing(const Parts& parts)
    : parts_(parts), pages_({.devices = parts.devices, .mover = parts.mover}, {}) {
  parts_.joint.serve(pages_);
}

Publishing::~Publishing() {
  leave();
  parts_.joint.stop_serving();
}

void Publishing::leave() {
  if (std::exchange(left_, true)) return;
  (void)parts_.joint.directory().leave(kLeaveUs);  // the homes log what is lost
}

Status Publishing::publish(void* pointer, const Order& order) {
  const std::lock_guard one(opening_);
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  VMEM_ASSIGN(Region* const region, live_region(parts_.space, address));
  const char* const wrong = region->slab                                ? "it shares pages with other small allocations"
                            : region->undeclared                        ? "it is not from vmem_malloc"
                            : base_of(parts_.space, *region) != address ? "it is inside of an allocation"
                                                                        : nullptr;
  if (wrong != nullptr)
    return fail(VMEM_ERROR_INVALID_VALUE,
                fmt::format("{:#x} was to be published, and {}: publish an allocation of more than 1 MiB, by the "
                            "pointer that vmem_malloc gave",
                            address, wrong));
  migration::FreezeRequest freeze;
  freeze.region = region;
  freeze.first_granule = region->first.index;
  VMEM_TRY(parts_.mover.call(freeze));
  Status announced = announce(*region, order, written_of(region->page_count, freeze.unwritten));
  if (announced || announced.error().status == VMEM_ERROR_TIMEOUT) return announced;
  migration::ThawRequest thaw;
  thaw.region = region;
  thaw.first_granule = region->first.index;
  VMEM_TRY(parts_.mover.call(thaw));
  return announced;
}

Status Publishing::announce(Region& region, const Order& order, Runs written) {
  VMEM_ASSIGN(const std::uint64_t number, parts_.member.take_serial());
  const cluster::directory::Serial serial{number};
  VMEM_ASSIGN(sharing::RegionKey made, sharing::RegionKey::create());
  const auto key = std::make_shared<const sharing::RegionKey>(std::move(made));
  const auto secret = key->bytes();
  const Joint joint{.serial = serial, .name = order.name, .region = &region};
  for (const cluster::Slice slice : slices_of(region)) VMEM_TRY(parts_.member.keep(slice));
  {
    const std::lock_guard lock(mutex_);
    joint_.emplace(region.first.index, joint);
  }
  serve(joint, key);
  const auto published =
      parts_.joint.directory().publish({.serial = serial,
                                        .name = order.name,
                                        .key = std::string(reinterpret_cast<const char*>(secret.data()), secret.size()),
                                        .first_granule = region.first.index,
                                        .granules = region.granules,
                                        .page_bytes = region.page_bytes(),
                                        .bytes = region.bytes,
                                        .copies = order.copies,
                                        .expires_s = order.expires_s,
                                        .written = std::move(written)},
                                       order.wait_us);
  if (published || published.error().status == VMEM_ERROR_TIMEOUT)
    return published ? Status{} : std::unexpected(published.error());
  pages_.remove(page_serial(serial));
  const std::lock_guard lock(mutex_);
  joint_.erase(region.first.index);
  return std::unexpected(published.error());
}

std::vector<cluster::Slice> Publishing::slices_of(const Region& region) const {
  const std::uint64_t granules = parts_.member.parameters().slice_bytes >> pagetable::kGranuleShift;
  std::vector<cluster::Slice> slices;
  for (std::uint64_t slice = region.first.index / granules; slice <= (region.end_granule() - 1) / granules; ++slice)
    slices.push_back(cluster::Slice(slice));
  return slices;
}

void Publishing::serve(const Joint& joint, std::shared_ptr<const sharing::RegionKey> key) {
  pages_.add(page_serial(joint.serial), {.region = joint.region,
                                         .page_bytes = joint.region->page_bytes(),
                                         .key = std::move(key),
                                         .tenant = parts_.tenant});
}

Publishing::Opened Publishing::opened(const Joint& joint) const {
  return {.pointer = reinterpret_cast<void*>(base_of(parts_.space, *joint.region)), .bytes = joint.region->bytes};
}

Result<Publishing::Opened> Publishing::open(const std::string& name, int device, std::uint64_t wait_us) {
  VMEM_ASSIGN(const int index, parts_.devices.index_of(device));
  // Another thread may publish it meanwhile. It may also close what this one has found; so what is
  // found is opened again, when nobody can.
  if (const auto found = parts_.joint.directory().open(name, wait_us); !found) return std::unexpected(found.error());
  const std::lock_guard one(opening_);
  VMEM_ASSIGN(const RegionRecord record, parts_.joint.directory().open(name, wait_us));
  {
    const std::lock_guard lock(mutex_);
    const auto there =
        std::ranges::find_if(joint_, [&](const auto& each) { return each.second.serial == record.serial; });
    if (there != joint_.end()) {
      ++there->second.times;
      return opened(there->second);
    }
  }
  auto mapped = map(record, index);
  if (!mapped) (void)parts_.joint.directory().close(record.serial, wait_us);
  return mapped;
}

Result<Publishing::Opened> Publishing::map(const RegionRecord& record, int device) {
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
  const auto key = std::make_shared<const sharing::RegionKey>(std::move(made));
  auto source = parts_.joint.tier().open({.name = record.name,
                                          .serial = page_serial(record.serial),
                                          .bytes = record.bytes,
                                          .page_bytes = record.page_bytes,
                                          .first_granule = std::uint32_t(record.first_granule),
                                          .key = key});
  VMEM_ASSIGN(Region* const region,
              parts_.regions.map(tiers::StackedTier::source_of(kSharedTier, std::move(source)), device));
  const Joint joint{.serial = record.serial, .name = record.name, .region = region};
  {
    const std::lock_guard lock(mutex_);
    joint_.emplace(region->first.index, joint);
  }
  serve(joint, key);
  return opened(joint);
}

Status Publishing::close(void* pointer, vmem_stream stream, std::uint64_t wait_us) {
  const std::lock_guard one(opening_);
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  VMEM_ASSIGN(Region* const region, live_region(parts_.space, address));
  Joint joint;
  {
    const std::lock_guard lock(mutex_);
    const auto found = joint_.find(region->first.index);
    if (found == joint_.end() || base_of(parts_.space, *region) != address)
      return fail(VMEM_ERROR_INVALID_POINTER,
                  fmt::format("{:#x} was to be closed, and is not what vmem_open gave, or what was published; free "
                              "other memory by vmem_free",
                              address));
    if (--found->second.times != 0) return {};
    ++found->second.times;  // until it is over
    joint = found->second;
  }
  if (parts_.slots.registry().overlapping_holds(region->first.index, region->end_granule()).named != 0)
    return fail(VMEM_ERROR_IN_USE, fmt::format("the published region '{}' has ranges that are still acquired; release "
                                               "them first",
                                               joint.name));
  // Others may fetch pages from here until the directory has let go.
  const auto lost = parts_.joint.directory().close(joint.serial, wait_us);
  pages_.remove(page_serial(joint.serial));
  VMEM_TRY(parts_.regions.free(*region, region->first.index, stream, Regions::Range::kept_if_own));
  {
    const std::lock_guard lock(mutex_);
    joint_.erase(joint.region->first.index);
  }
  if (!lost) return std::unexpected(lost.error());
  if (lost->empty()) return {};
  return fail(VMEM_ERROR_LOST,
              fmt::format("the published region '{}' is closed, and no other node is known to have {} of its pages, "
                          "from page {} on: publish with copies, or let others open it before",
                          joint.name, count(*lost), lost->front().first));
}

Status Publishing::remove(const std::string& name, std::uint64_t wait_us) {
  return parts_.joint.directory().remove(name, wait_us);
}

Status Publishing::check_free(const void* pointer) const {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if (!parts_.space.contains(address)) return {};
  const std::lock_guard lock(mutex_);
  const auto found = joint_.find(parts_.space.granule_at(address));
  if (found == joint_.end()) return {};
  return fail(VMEM_ERROR_INVALID_POINTER,
              fmt::format("{:#x} is the published region '{}', which other nodes may have open: end it by vmem_close",
                          address, found->second.name));
}

void Publishing::range_freed(std::uint32_t first, std::uint32_t count) {
  const std::lock_guard lock(mutex_);
  grants_.remove_if([](migration::GrantRequest& grant) {
    if (grant.done()) (void)grant.wait();  // until the mover has left it
    return grant.done();
  });
  migration::GrantRequest& grant = grants_.emplace_back();
  grant.first = first;
  grant.count = count;
  parts_.mover.post(grant);
}

}  // namespace vmem::runtime
