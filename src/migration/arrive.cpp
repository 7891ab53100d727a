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

bool Mover::arrives(PageRef ref) {
  const Page& page = ref.page();
  if (config_.frame_reader == nullptr || page.frame != kNoFrame || page.in_place) return false;
  if (!page.spilled_current() || page.slot_current() || page.spilled->through_host) return false;
  if (!ref.region->read_only && !comparable(ref)) return false;
  return below_of(*ref.region).reaches(page.spilled->slot, ref.region->device);
}

// REQUIRES: arrives.
Result<Mover::Arrival> Mover::arrive(PageRef ref, bool evict, Search search) {
  Page& page = ref.page();
  DeviceState& device = device_of(*ref.region);
  if (spilling(page)) return Arrival::on_its_way;
  if (page.cpu_users != 0 || !room_in_flight(recalling_bytes_, ref.bytes())) return Arrival::later;
  Grab grab;
  if (evict) {
    VMEM_ASSIGN(grab, grab_frame(device, ref.bytes(), search));
  } else {
    VMEM_ASSIGN(grab.frame, take_frame(device, ref.bytes()));
  }
  if (!grab.frame) return Arrival::no_frame;
  // A disk waits for no copy that still reads the frame; and to find the frame, uses may have been read, and that the region died.
  const std::uint64_t busy_until = device.hbm.frame(*grab.frame).busy_until;
  if (running(busy_until) || !arrives(ref)) {
    device.hbm.give_back(*grab.frame, busy_until, nullptr);
    return Arrival::later;
  }
  if (auto submitted = submit_arrival(ref, *grab.frame); !submitted) {
    device.hbm.give_back(*grab.frame, 0, nullptr);
    return std::unexpected(std::move(submitted).error());
  }
  return Arrival::on_its_way;
}

Status Mover::submit_arrival(PageRef ref, std::uint32_t frame) {
  Page& page = ref.page();
  tiers::Transfer transfer;
  transfer.page = {0, ref.begin()};
  transfer.version = page.version;
  transfer.slot = page.spilled->slot;
  transfer.frame = device_of(*ref.region).hbm.frame(frame).window;
  transfer.bytes = ref.bytes();
  transfer.device = ref.region->device;
  transfer.direction = Direction::load;
  transfer.kind = ref.region->id.value;
  VMEM_TRY(below_of(*ref.region).submit({&transfer, 1}));
  page.spilled->transfer = transfer.id;
  recalling_bytes_ += ref.bytes();
  in_flight_[transfer.id] = {.region = ref.region,
                             .page = ref.index,
                             .bytes = ref.bytes(),
                             .direction = Direction::load,
                             .if_changed = false,
                             .done = nullptr,
                             .kind = InFlight::Kind::arrival,
                             .version = page.version,
                             .from = {},
                             .frame = frame};
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
  VMEM_TRY(config_.backing->submit({&transfer, 1}));
  page.spilled->transfer = transfer.id;
  InFlight check = arrival;
  check.kind = InFlight::Kind::arrival_check;
  check.done = transfer.done;
  in_flight_[transfer.id] = check;
  worked_ = true;
  return {};
}

void Mover::finish_arrival(PageRef ref, const InFlight& transfer, const tiers::Completion& completion) {
  Page& page = ref.page();
  DeviceState& device = device_of(*ref.region);
  page.spilled->transfer = 0;
  const bool live = ref.region->state.load(std::memory_order_relaxed) == pagetable::RegionState::live;
  // Freed, forgotten or written anew while it was on its way.
  const bool wanted = live && page.version == transfer.version && page.spilled_current() && page.frame == kNoFrame &&
                      page.mapped == Mapped::nothing && !page.slot_current() && !outlived(ref);
  const bool read = transfer.kind == InFlight::Kind::arrival;
  std::optional<Error> failed;
  if (completion.outcome != tiers::Outcome::done) failed = completion.error;
  if (!read && completion.changed) {
    failed = Error{VMEM_ERROR_LOST, 0, "its bytes are not those that were written; they are asked for once more"};
  }
  if (wanted && read && !failed && !ref.region->read_only) {
    const auto checked = comparable(ref) ? check_arrival(ref, transfer)
                                         : Status(fail(VMEM_ERROR_INTERNAL, "its bytes are no longer known"));
    if (checked) return;
    failed = checked.error();
  }
  recalling_bytes_ -= transfer.bytes;
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
}

// If the page is lost, the way through host memory finds out.
void Mover::arrival_failed(PageRef ref, const Error& error) {
  ref.page().spilled->through_host = true;
  if (!std::has_single_bit(++counters_.read_to_hbm_failures)) return;
  VMEM_LOG_WARN(
      "the page at {:#x} could not be read straight to HBM by {}, and comes through host memory: {} ({} such failures)",
      address_of(ref), config_.frame_reader->describe(), error.message, counters_.read_to_hbm_failures);
}

}  // namespace vmem::migration
