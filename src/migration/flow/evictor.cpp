#include "migration/flow/evictor.hpp"

#include <utility>

#include "migration/place/below.hpp"

namespace vmem::migration {

using pagetable::Mapped;

Result<Attempt> Evictor::evict(PageRef ref, std::optional<PageRef> served) {
  Page& page = ref.page();
  if (!page.owns_frame()) return Attempt::done;
  parts_.uses.start_tracking();
  // A load failed after the page was mapped; a good copy is left.
  if (parts_.losses.is_unread(ref)) {
    VMEM_ASSIGN(const bool taken, parts_.unread.take_back(ref, 0));
    return taken ? Attempt::done : Attempt::after_gpu;
  }
  if (page.pinned || page.kept || page.cpu_users != 0) return Attempt::after_release;
  if (parts_.fingerprints.comparing(page))
    return page.mapped == Mapped::nothing ? Attempt::after_transfer : Attempt::after_gpu;
  if (const Attempt why = parts_.gate.held(ref, 0); why != Attempt::done) return why;
  const bool worthless = Contents::of_earlier_life(ref);
  if (parts_.transfers.running(page.wait)) return Attempt::after_gpu;
  if (parts_.transfers.busy_below(page)) return Attempt::after_transfer;
  if (!parts_.uses.uses_complete(*ref.region, page)) return Attempt::after_gpu;
  // A write-protected page cannot have changed since it was read from below: it needs no copy in
  // near memory.
  const bool kept_below = parts_.mapper.write_protected(*ref.region) && page.spilled_current();
  const bool compared = !worthless && !kept_below && parts_.fingerprints.comparable(ref);
  if (!worthless && page.version != 0 && !page.slot_current() && !kept_below && !compared) {
    SlotWish wish;
    if (served) wish = {Displaces::anything, &served->page(), parts_.near.keeps_copies_of(*served->region)};
    const auto granted = parts_.host.need_slot(ref, wish);
    // Each host slot holds a page's only copy. This page stays in HBM until the program frees or
    // releases something.
    if (!granted && granted.error().status == VMEM_ERROR_OUT_OF_MEMORY) return Attempt::after_release;
    if (!granted) return std::unexpected(granted.error());
    if (*granted != Attempt::done) return granted;
  }
  if (page.mapped == Mapped::frame) {
    const PageState before = ref.state();
    if (const Attempt why = parts_.gate.withdraw(ref); why != Attempt::done) {
      parts_.near.offer_slot(ref);  // makes a slot allocated for this eviction reclaimable
      return why;
    }
    // The region was reused meanwhile, and the contents count again: the next attempt first finds a
    // slot for them.
    const bool revived = worthless && !Contents::of_earlier_life(ref);
    auto unmapped = revived ? Status{} : parts_.mapper.unmap(ref);
    if (revived || !unmapped) parts_.residency.publish(ref, before);
    if (revived) return Attempt::after_gpu;
    if (!unmapped) return std::unexpected(unmapped.error());
    page.mapped = Mapped::nothing;
  }
  if (worthless) {
    parts_.contents.forget(ref);
    ++parts_.core.counters.dead_evictions;
  }
  if (compared) {
    VMEM_TRY(parts_.fingerprints.submit(ref));
    return Attempt::after_transfer;
  }
  VMEM_TRY(give_up_frame(ref));
  return Attempt::done;
}

Status Evictor::give_up_frame(PageRef ref) {
  Page& page = ref.page();
  // A frame retaken from standby may still be read by the store of its last eviction.
  std::uint64_t store = parts_.transfers.running(page.store) ? page.store : 0;
  const bool protected_page = parts_.mapper.write_protected(*ref.region);
  const bool clean = page.version == 0 || page.slot_current() || (protected_page && page.spilled_current());
  // A dirty page is copied. A clean page that the GPU could have written undeclared is copied by
  // the tier only if it was written.
  if (!clean || (page.version != 0 && !protected_page)) {
    VMEM_ASSIGN(store,
                parts_.loader.submit(ref, tiers::Direction::store, page.frame, 0, clean ? Watch::yes : Watch::no));
    page.store = store;
    page.slot_version = page.version;
    // A store with if_changed reports writes when it completes. A plain store tells nothing, so the
    // copy below becomes unverified.
    if (!parts_.transfers.at(store).if_changed) Below::distrust(page);
  } else {
    parts_.core.counters.dropped_bytes += ref.bytes();
  }
  parts_.frames.give_up(ref, store);
  return {};
}

}  // namespace vmem::migration
