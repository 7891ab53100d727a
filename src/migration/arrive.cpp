// From a file straight into a frame of HBM, past host memory (GPUDirect Storage). What comes so is no page's yet: it is looked at first, by
// its tier if the file is somebody else's, and otherwise by the GPU, which has to find the fingerprint that the page's bytes are known by.
// Then the page has a frame that is not mapped, and whoever wants the page maps it. What comes wrong, or not at all, comes through host
// memory the next time, where it is tried again, and checked by what was kept of it when it left.
#include <fmt/format.h>

#include <bit>

#include "base/log.hpp"
#include "migration/mover.hpp"

namespace vmem::migration {

using pagetable::kNoFrame;
using pagetable::Mapped;
using tiers::Direction;

// Also while it is on its way.
bool Mover::arrives(PageRef ref) {
  const Page& page = ref.page();
  if (page.frame != kNoFrame || page.in_place || !page.spilled_current() || page.slot_current()) return false;
  if (page.spilled->through_host || (!ref.region->read_only && !comparable(ref))) return false;
  return below_of(*ref.region).reaches(page.spilled->slot, ref.region->device);
}

// It has its frame, and waits for whoever wanted it.
bool Mover::arrived(PageRef ref) const {
  const Page& page = ref.page();
  return page.mapped == Mapped::nothing && page.frame != kNoFrame && !page.standby && page.spilled != nullptr &&
         page.spilled->wanted;
}

// REQUIRES: arrives.
Result<Mover::Arrival> Mover::arrive(PageRef ref, bool evict, Search search) {
  Page& page = ref.page();
  DeviceState& device = device_of(*ref.region);
  if (spilling(page)) {
    const bool check = in_flight_.at(page.spilled->transfer).kind == InFlight::Kind::arrival_check;
    return check ? Arrival::checked : Arrival::on_its_way;
  }
  // It takes a frame, and nobody's time.
  if (page.cpu_users != 0 || !usual_room(recalling_bytes_, ref.bytes())) return Arrival::later;
  // A disk waits for no copy that still reads the frame.
  Grab grab;
  if (evict) {
    VMEM_ASSIGN(grab, grab_frame(device, {ref.bytes(), search, Frames::idle}));
  } else {
    VMEM_ASSIGN(grab.frame, take_frame(device, ref.bytes(), Frames::idle));
  }
  if (!grab.frame) return grab.busy ? Arrival::busy : Arrival::no_frame;
  // To find the frame, uses may have been read, and that the region died.
  auto submitted = arrives(ref) ? submit_arrival(ref, *grab.frame) : Status{};
  if (spilling(page)) return Arrival::on_its_way;
  device.hbm.give_back(*grab.frame, 0, nullptr);
  if (!submitted) return std::unexpected(std::move(submitted).error());
  return Arrival::later;
}

Status Mover::submit_arrival(PageRef ref, std::uint32_t frame) {
  Page& page = ref.page();
  DeviceState& device = device_of(*ref.region);
  tiers::Transfer transfer;
  transfer.page = {0, ref.begin()};
  transfer.version = page.version;
  transfer.slot = page.spilled->slot;
  transfer.frame = device.hbm.frame(frame).window;
  transfer.bytes = ref.bytes();
  transfer.device = ref.region->device;
  transfer.direction = Direction::load;
  transfer.kind = ref.region->id.value;
  Transfers::Room room = Transfers::reserve({.region = ref.region,
                                             .page = ref.index,
                                             .bytes = ref.bytes(),
                                             .direction = Direction::load,
                                             .kind = InFlight::Kind::arrival,
                                             .version = page.version,
                                             .since_us = config_.now_us(),
                                             .frame = frame});
  VMEM_TRY(below_of(*ref.region).submit({&transfer, 1}));
  in_flight_.enter(std::move(room), transfer);
  page.spilled->transfer = transfer.id;
  page.spilled->wanted = true;
  recalling_bytes_ += ref.bytes();
  device.arriving_bytes += ref.bytes();
  worked_ = true;
  return {};
}

// By the GPU: whether the frame has the bytes that the copy below is known to have.
Status Mover::check_arrival(PageRef ref, const InFlight& arrival) {
  Page& page = ref.page();
  tiers::Transfer transfer;
  transfer.page = {0, ref.begin()};
  transfer.version = page.version;
  transfer.frame = device_of(*ref.region).hbm.frame(arrival.frame).window;
  transfer.bytes = ref.bytes();
  transfer.device = ref.region->device;
  transfer.direction = Direction::store;
  transfer.compare_with = page.spilled->fingerprint;
  InFlight check = arrival;
  check.kind = InFlight::Kind::arrival_check;
  Transfers::Room room = Transfers::reserve(check);
  VMEM_TRY(config_.backing->submit({&transfer, 1}));
  in_flight_.enter(std::move(room), transfer);
  page.spilled->transfer = transfer.id;
  worked_ = true;
  return {};
}

// The GPU may be full of work that waits for who wants the page: it comes through host memory then, and what was read is forgotten.
void Mover::give_up_check(PageRef ref) {
  pagetable::SpilledCopy& copy = *ref.page().spilled;
  in_flight_.at(copy.transfer).version = 0;
  copy.transfer = 0;
  copy.through_host = true;
}

void Mover::finish_arrival(PageRef ref, std::uint64_t id, const InFlight& transfer,
                           const tiers::Completion& completion) {
  Page& page = ref.page();
  DeviceState& device = device_of(*ref.region);
  const bool read = transfer.kind == InFlight::Kind::arrival;
  if (read) recalling_bytes_ -= transfer.bytes;
  const bool ours = page.spilled->transfer == id;
  if (ours) page.spilled->transfer = 0;
  const bool live = ref.region->state.load(std::memory_order_relaxed) == pagetable::RegionState::live;
  // Given up, freed, forgotten, written anew or advised to stay elsewhere while it was on its way.
  const bool wanted = ours && live && page.version == transfer.version && arrives(ref) &&
                      page.mapped == Mapped::nothing && !outlived(ref);
  std::optional<Error> failed;
  if (completion.outcome != tiers::Outcome::done) failed = completion.error;
  if (!read && completion.changed) {
    failed = Error{VMEM_ERROR_LOST, 0, "its bytes are not those that were written; they are asked for once more"};
  }
  if (wanted && read && !failed && !ref.region->read_only) {
    const auto checked = check_arrival(ref, transfer);
    if (checked) return;
    failed = checked.error();
  }
  device.arriving_bytes -= transfer.bytes;
  if (!wanted || failed) device.hbm.give_back(transfer.frame, 0, nullptr);
  if (live && page.version == 0) return forget_contents(ref);
  if (!wanted) return;
  if (failed) return arrival_failed(ref, *failed);
  page.frame = transfer.frame;
  note(ref, Happened::read_to_hbm);
  (ref.region->read_only ? counters_.file_read_bytes : counters_.recalled_bytes) += transfer.bytes;
  counters_.read_to_hbm_bytes += transfer.bytes;
  counters_.migrated_in_bytes += transfer.bytes;
  config_.policy->page_arrived(ref.id(), true);
  room_came_below();
}

// If the page is lost, the way through host memory finds out.
void Mover::arrival_failed(PageRef ref, const Error& error) {
  ref.page().spilled->through_host = true;
  if (!std::has_single_bit(++counters_.read_to_hbm_failures)) return;
  VMEM_LOG_WARN(
      "the page at {:#x} could not be read straight to HBM, and comes through host memory: {} ({} such failures)",
      address_of(ref), error.message, counters_.read_to_hbm_failures);
}

}  // namespace vmem::migration
