#include "migration/flow/bring_in.hpp"

#include <fmt/format.h>

#include "base/sizes.hpp"
#include "migration/flow/in_flight_limits.hpp"
#include "migration/place/full_error.hpp"

namespace vmem::migration {

using pagetable::Access;
using pagetable::Mapped;

Result<Served> BringIn::serve(PageRef ref, Access access, OldBytes old, Effort effort, std::uint32_t own_holds) {
  Page& page = ref.page();
  const PageState state = ref.state();
  if (state.has(PageState::kLost)) return std::unexpected(parts_.unread.error(ref, own_holds));
  if (page.mapped == Mapped::slot && effort.move_to_hbm && !page.in_place)
    return move_to_hbm(ref, access, effort, own_holds);
  if (state.allows(access)) return Served{};
  // The CPU and kernels read at once what nobody writes: open pages keep their slots.
  const bool both_read = ref.region->immutable() && access == Access::read;
  if (page.cpu_users != 0 && !both_read) return Served{Lacks::bytes, Attempt::after_release};
  if (page.mapped == Mapped::nothing) return make_usable(ref, access, old, effort);
  VMEM_ASSIGN(const bool writable, upgrade(ref, own_holds));
  return writable ? Served{} : Served{Lacks::access, Attempt::after_release};
}

Result<Served> BringIn::move_to_hbm(PageRef ref, Access access, Effort effort, std::uint32_t own_holds) {
  VMEM_ASSIGN(const Attempt left, parts_.gate.hide(ref, own_holds));
  if (left == Attempt::done) return make_usable(ref, access, OldBytes::fetch, effort);
  if ((left == Attempt::after_gpu || effort.needs_hbm) && effort.wait) return Served{Lacks::frame, left};
  return serve(ref, access, OldBytes::fetch, {.evict = effort.evict, .wait = effort.wait}, own_holds);
}

Result<bool> BringIn::upgrade(PageRef ref, std::uint32_t own_holds) {
  Page& page = ref.page();
  if (parts_.mapper.write_protected(*ref.region)) {
    // AccessGate::withdraw clears kPending for a moment: no launch may miss a load in flight.
    if (parts_.transfers.running(page.wait) || !parts_.uses.uses_complete(*ref.region, page)) return false;
    const PageState before = ref.state();
    if (parts_.gate.withdraw(ref, own_holds) != Attempt::done) return false;
    if (auto changed = parts_.mapper.set_access(ref, Access::write); !changed) {
      parts_.residency.publish(ref, before);
      return std::unexpected(changed.error());
    }
    parts_.residency.publish(ref, before);
  }
  ++page.version;
  if (page.mapped == Mapped::slot) page.slot_version = page.version;
  const PageState state = ref.state();
  // Writes must wait for the store of the last eviction, which may still read this frame; a load in
  // flight does already.
  const std::uint32_t flags =
      state.has(PageState::kPending) ? 0 : parts_.pending.wait_for(ref, Loader::store_from_frame(page));
  parts_.residency.publish(ref, state.with(Access::write).set(flags));
  return true;
}

Error BringIn::still_read_error(PageRef ref) const {
  return {
      VMEM_ERROR_IN_USE, 0,
      fmt::format(
          "the page at {:#x} ({}) is held or used for reading and cannot become writable meanwhile, with the option "
          "protect; acquire it for VMEM_READ_WRITE in the first place, or release it first",
          parts_.core.address_of(ref), format_bytes(ref.bytes()))};
}

Result<Served> BringIn::make_usable(PageRef ref, Access access, OldBytes old, Effort effort) {
  Page& page = ref.page();
  if (Contents::of_earlier_life(ref)) parts_.contents.forget(ref);
  const bool in_place_wanted = page.in_place && parts_.core.config.in_place != nullptr;
  const bool has_own_frame = page.has_frame() && !(in_place_wanted && page.standby());
  if (!has_own_frame && page.version != 0 && old == OldBytes::fetch) {
    VMEM_ASSIGN(const Served near, bring_near(ref, effort));
    if (near.lacks != Lacks::nothing) return near;
  }
  // Asked again: bring_near may have read into a frame.
  if (page.has_frame() && !(in_place_wanted && page.standby())) {
    VMEM_TRY(parts_.loader.remap(ref, access));
    return Served{};
  }
  if (in_place_wanted) {
    auto served = map_in_place(ref, access, old);
    if (served || served.error().status != VMEM_ERROR_OUT_OF_MEMORY) return served;
    // Host memory is full: the page's committed place is in HBM.
    if (page.has_frame()) {
      VMEM_TRY(parts_.loader.remap(ref, access));
      return Served{};
    }
  }
  const bool fetch = page.version != 0 && old == OldBytes::fetch;
  // Enough loads are in flight. They end with GPU progress, since their fingerprint kernels wait
  // for room on the GPU, so this counts as waiting for the GPU.
  if (fetch && !load_has_room(parts_.devices.of(*ref.region), ref.bytes())) {
    if (effort.wait || !effort.in_place) return Served{Lacks::frame, Attempt::after_gpu};
    return map_in_place(ref, access, old);
  }
  const Search search = effort.evict ? Search::until_busy : Search::no_victims;
  VMEM_ASSIGN(const Grab grab, parts_.finder.grab({ref, search}));
  if (grab.frame) {
    VMEM_TRY(parts_.loader.load(ref, *grab.frame, access, old));
    return Served{};
  }
  if ((comes(grab.otherwise) && effort.wait) || !effort.in_place) return Served{Lacks::frame, Attempt::after_gpu};
  return map_in_place(ref, access, old);
}

// Reads the page from below, if it is only there: into a frame, else into a host slot.
Result<Served> BringIn::bring_near(PageRef ref, Effort effort) {
  if (parts_.direct.possible(ref)) {
    // Without `waits` the page comes through a host slot. That slot may be freed only by lifting
    // another page into a frame; an eviction here would take that frame.
    const bool waits = effort.wait || !effort.in_place;
    const Search search = effort.evict && waits ? Search::until_busy : Search::no_victims;
    VMEM_ASSIGN(const Attempt started, parts_.direct.start(ref, search));
    if (started == Attempt::after_gpu && waits) return Served{Lacks::frame, started};
    // The GPU, which verifies the frame, may be busy with work that waits for this page: reads
    // through host memory instead.
    if (parts_.direct.checking(ref.page())) {
      parts_.direct.give_up_check(ref);
    } else if (started == Attempt::done || started == Attempt::after_transfer) {
      return Served{Lacks::bytes, Attempt::after_transfer};
    }
  }
  VMEM_ASSIGN(const Attempt recalled, parts_.recall.recall(ref));
  return recalled == Attempt::done ? Served{} : Served{Lacks::bytes, recalled};
}

Result<Served> BringIn::map_in_place(PageRef ref, Access access, OldBytes old) {
  Page& page = ref.page();
  if (parts_.core.config.in_place == nullptr)
    return std::unexpected(full_error(parts_.core, parts_.devices, parts_.near, parts_.below,
                                      "a page that no HBM can be had for", ref.bytes()));
  if (parts_.transfers.busy_below(page)) return Served{Lacks::bytes, Attempt::after_transfer};
  if (page.version == 0 || old == OldBytes::discard) {
    VMEM_ASSIGN(const Attempt granted, parts_.host.need_slot(ref, {Displaces::advised, &page}));
    if (granted != Attempt::done) return Served{Lacks::bytes, granted};
  }
  VMEM_TRY(parts_.mapper.map(ref, parts_.near.of(page).in_place->handle(page.slot), access));
  parts_.contents.drop_standby(ref);
  parts_.loader.expose(ref, Mapped::slot, access, page.store);
  return Served{};
}

Result<Attempt> BringIn::place_for_cpu_write(PageRef ref) {
  Page& page = ref.page();
  const auto granted = parts_.host.need_slot(ref);
  if (granted && *granted == Attempt::done) {
    parts_.contents.drop_standby(ref);
    parts_.near.came_to_host_memory(ref);
  }
  if (granted || granted.error().status != VMEM_ERROR_OUT_OF_MEMORY) return granted;
  VMEM_ASSIGN(const Grab grab, parts_.finder.grab({ref, Search::until_busy, Frames::idle}));
  if (!grab.frame && !comes(grab.otherwise)) return std::unexpected(granted.error());
  if (!grab.frame) return grab.otherwise;
  page.enter_frame(*grab.frame);
  parts_.core.config.policy->page_arrived(ref.id(), Cause::use);
  return Attempt::done;
}

}  // namespace vmem::migration
