#include "migration/flow/direct_reads.hpp"

#include <bit>
#include <optional>
#include <utility>

#include "base/log.hpp"
#include "migration/flow/in_flight_limits.hpp"

namespace vmem::migration {

using pagetable::Mapped;
using tiers::Direction;

bool DirectReads::possible(PageRef ref) const {
  const Page& page = ref.page();
  if (page.has_frame() || page.in_place || !page.spilled_current() || page.slot_current()) return false;
  if (page.spilled->route == pagetable::SpilledCopy::Route::through_host ||
      (!ref.region->read_only && !parts_.fingerprints.comparable(ref)))
    return false;
  return parts_.below.abilities_of(ref).loads_into_frames(page.spilled->slot, ref.region->device);
}

bool DirectReads::checking(const Page& page) const {
  return parts_.transfers.busy_below(page) &&
         parts_.transfers.at(page.spilled->transfer).kind == InFlight::Kind::arrival_check;
}

Result<Attempt> DirectReads::start(PageRef ref, Search search) {
  const Page& page = ref.page();
  if (parts_.transfers.busy_below(page)) return checking(page) ? Attempt::after_gpu : Attempt::done;
  // The usual limit, no more: each direct read in flight holds a frame.
  if (page.cpu_users != 0 || !usual_room(parts_.below.loading().total, ref.bytes())) return Attempt::after_transfer;
  // A direct read cannot wait for a store that still reads the frame.
  VMEM_ASSIGN(const Grab grab, parts_.finder.grab({ref, search, Frames::idle}));
  if (!grab.frame) return comes(grab.otherwise) ? Attempt::after_gpu : Attempt::never;
  // The search for a frame may have drained uses and noticed that the region died.
  auto submitted = possible(ref) ? submit(ref, *grab.frame) : Status{};
  if (parts_.transfers.busy_below(page)) return Attempt::done;
  parts_.devices.of(*ref.region).hbm.give_back(*grab.frame, 0, nullptr);
  if (!submitted) return std::unexpected(std::move(submitted).error());
  return Attempt::after_transfer;
}

Status DirectReads::submit(PageRef ref, std::uint32_t frame) {
  Page& page = ref.page();
  Device& device = parts_.devices.of(*ref.region);
  tiers::Transfer transfer = transfer_of(ref, Direction::load);
  transfer.slot = page.spilled->slot;
  transfer.frame = device.hbm.frame(frame).window;
  transfer.kind = ref.region->id.value;
  InFlight entry = in_flight(ref, Direction::load, InFlight::Kind::arrival, parts_.core.now_us());
  entry.frame = frame;
  entry.queue = parts_.below.queue_of(ref);
  Transfers::Room room = Transfers::reserve(entry);
  parts_.below.transfer_begins(Direction::load, entry.queue, ref.bytes());
  if (auto submitted = parts_.below.of(ref).submit({&transfer, 1}); !submitted) {
    parts_.below.transfer_ends(Direction::load, entry.queue, ref.bytes());
    return submitted;
  }
  parts_.transfers.enter(std::move(room), transfer);
  page.spilled->transfer = transfer.id;
  page.spilled->wanted = true;
  device.arriving_bytes += ref.bytes();
  parts_.core.worked = true;
  return {};
}

Status DirectReads::check(PageRef ref, const InFlight& arrival) {
  Page& page = ref.page();
  tiers::Transfer transfer = transfer_of(ref, Direction::store);
  transfer.frame = parts_.devices.of(*ref.region).hbm.frame(arrival.frame).window;
  transfer.compare_with = page.spilled->fingerprint;
  InFlight check = arrival;
  check.kind = InFlight::Kind::arrival_check;
  Transfers::Room room = Transfers::reserve(check);
  VMEM_TRY(parts_.core.config.backing->submit({&transfer, 1}));
  parts_.transfers.enter(std::move(room), transfer);
  page.spilled->transfer = transfer.id;
  parts_.core.worked = true;
  return {};
}

void DirectReads::give_up_check(PageRef ref) {
  pagetable::SpilledCopy& copy = *ref.page().spilled;
  parts_.transfers.at(copy.transfer).version = 0;
  copy.transfer = 0;
  copy.route = pagetable::SpilledCopy::Route::through_host;
}

void DirectReads::finish(PageRef ref, std::uint64_t id, const InFlight& transfer, const tiers::Completion& completion) {
  Page& page = ref.page();
  Device& device = parts_.devices.of(*ref.region);
  const bool read = transfer.kind == InFlight::Kind::arrival;
  if (read) parts_.below.transfer_ends(Direction::load, transfer.queue, transfer.bytes);
  const bool ours = page.spilled->transfer == id;
  if (ours) page.spilled->transfer = 0;
  const bool live = ref.region->state.load(std::memory_order_relaxed) == pagetable::RegionState::live;
  // Not wanted if given up, freed, forgotten, written or advised to stay elsewhere meanwhile.
  const bool wanted = ours && live && page.version == transfer.version && possible(ref) &&
                      page.mapped == Mapped::nothing && !Contents::of_earlier_life(ref);
  std::optional<Error> failed;
  if (completion.outcome != tiers::Outcome::done) failed = completion.error;
  if (!read && completion.changed) {
    failed = Error{VMEM_ERROR_LOST, 0, "its bytes are not those that were written; they are asked for once more"};
  }
  if (wanted && read && !failed && !ref.region->read_only) {
    const auto checked = check(ref, transfer);
    if (checked) return;
    failed = checked.error();
  }
  device.arriving_bytes -= transfer.bytes;
  if (!wanted || failed) device.hbm.give_back(transfer.frame, 0, nullptr);
  if (live && page.version == 0) return parts_.contents.forget(ref);
  if (!wanted) return;
  if (failed) return read_failed(ref, *failed);
  page.enter_frame(transfer.frame);
  parts_.core.note(ref, Happened::read_to_hbm);
  (ref.region->read_only ? parts_.core.counters.file_read_bytes : parts_.core.counters.recalled_bytes) +=
      transfer.bytes;
  parts_.core.counters.read_to_hbm_bytes += transfer.bytes;
  parts_.core.counters.migrated_in_bytes += transfer.bytes;
  parts_.core.config.policy->page_arrived(ref.id(), Cause::prefetch);
  parts_.below.pacing().room_came();
}

void DirectReads::read_failed(PageRef ref, const Error& error) {
  ref.page().spilled->route = pagetable::SpilledCopy::Route::through_host;
  if (!std::has_single_bit(++parts_.core.counters.read_to_hbm_failures)) return;
  VMEM_LOG_WARN(
      "the page at {:#x} could not be read straight to HBM, and comes through host memory: {} ({} such failures)",
      parts_.core.address_of(ref), error.message, parts_.core.counters.read_to_hbm_failures);
}

}  // namespace vmem::migration
