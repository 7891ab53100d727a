#include "migration/flow/fingerprints.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/log.hpp"
#include "base/sizes.hpp"
#include "migration/place/below.hpp"

namespace vmem::migration {

using pagetable::Mapped;

namespace {

// A page of an undeclared region that was found written counts as written on its next fetches, and
// is stored without a comparison after each: 1, then 3, at most this many.
constexpr std::uint8_t kWritesBelieved = 15;
// Of a page that was written in a smaller part only that part is copied: it goes on being compared.
// Larger parts are for the copy engines: a kernel that copies slows others down.
constexpr std::uint64_t kPartOf = 4;

}  // namespace

void Fingerprints::learn(PageRef ref) {
  const Page& page = ref.page();
  if (page.spilled == nullptr || page.spilled->fingerprint || !page.spilled->verified() ||
      transfers_.running(page.store))
    return;
  if (!page.spilled_current() || !page.slot_current() || page.near != 0) return;
  const auto learned = near_.of(page).abilities.fingerprint(page.slot);
  if (!learned) return;
  page.spilled->fingerprint = *learned;
}

bool Fingerprints::comparable(PageRef ref) const {
  const Page& page = ref.page();
  if (!page.spilled_current() || !page.spilled->fingerprint || !page.spilled->verified() ||
      transfers_.running(page.store))
    return false;
  return !core_.abilities.spill.degraded(page.spilled->slot) && core_.abilities.backing.can_compare(ref.region->device);
}

bool Fingerprints::comparing(const Page& page) const {
  const auto found = transfers_.find(page.store);
  return found != transfers_.end() && found->second.kind == InFlight::Kind::compare;
}

Status Fingerprints::submit(PageRef ref) {
  Page& page = ref.page();
  Device& device = devices_.of(*ref.region);
  tiers::Transfer transfer = transfer_of(ref, tiers::Direction::store);
  transfer.frame = device.hbm.frame(page.frame).window;
  transfer.compare_with = page.spilled->fingerprint;
  Transfers::Room room =
      Transfers::reserve(in_flight(ref, tiers::Direction::store, InFlight::Kind::compare, core_.now_us()));
  VMEM_TRY(core_.config.backing->submit({&transfer, 1}));
  transfers_.enter(std::move(room), transfer);
  page.store = transfer.id;
  device.stores_bytes += ref.bytes();
  core_.worked = true;
  return {};
}

void Fingerprints::finish(PageRef ref, const InFlight& transfer, const tiers::Completion& completion) {
  Page& page = ref.page();
  devices_.of(*ref.region).stores_bytes -= transfer.bytes;
  if (page.store == completion.id) page.store = 0;
  // Mapped, freed or written meanwhile: the outcome no longer applies.
  const bool live = ref.region->state.load(std::memory_order_relaxed) == pagetable::RegionState::live;
  const bool left = live && page.mapped == Mapped::nothing && page.owns_frame() && page.cpu_users == 0 &&
                    !page.pinned && !page.kept && page.version == transfer.version && page.spilled_current();
  if (!left) return;
  if (completion.outcome != tiers::Outcome::done || completion.changed) {
    // The frame holds the only copy: the next eviction needs a slot.
    page.spilled->fingerprint.reset();
    Below::distrust(page);
    if (completion.changed) found_changed(ref, ref.bytes());
    return;
  }
  page.writes_in_a_row = 0;
  core_.counters.dropped_bytes += ref.bytes();
  frames_.give_up(ref, 0);
}

void Fingerprints::found_changed(PageRef ref, std::uint64_t bytes) {
  if (ref.region->undeclared || ref.region->launched) {
    Page& page = ref.page();
    if (bytes < ref.bytes() / kPartOf) return;
    page.writes_in_a_row = std::uint8_t(std::min<unsigned>(2u * page.writes_in_a_row + 1, kWritesBelieved));
    page.writes_believed = page.writes_in_a_row;
    return;
  }
  if (!std::has_single_bit(++core_.counters.stray_writes)) return;
  VMEM_LOG_WARN(
      "the page at {:#x} ({}) was written by work that had acquired it for reading; what it wrote was kept ({} such "
      "pages). Name "
      "the write in the acquire, or find it with the option protect",
      core_.address_of(ref), format_bytes(ref.bytes()), core_.counters.stray_writes);
}

}  // namespace vmem::migration
