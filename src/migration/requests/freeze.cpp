// A region that is published: nobody can write to it from then on.
#include <fmt/format.h>

#include "migration/parts.hpp"
#include "migration/request.hpp"

namespace vmem::migration {

using pagetable::Freeze;
using pagetable::Mapped;

namespace {

Status refuse(const MoverParts& parts, const pagetable::Region& region, vmem_status status, std::string_view why) {
  return fail(status, fmt::format("the memory at {:#x} cannot be published: {}",
                                  parts.core.config.space->address_of(region.first.index), why));
}

// What was mapped for reading only meanwhile is writable again.
Status thaw(MoverParts& parts, pagetable::Region& region) {
  region.freeze = Freeze::none;
  region.extent.keeps_range = false;
  for (std::uint32_t i = 0; i < region.page_count; ++i) {
    const PageRef ref{&region, i};
    if (ref.page().mapped != Mapped::nothing) VMEM_TRY(parts.mapper.set_access(ref, pagetable::Access::write));
  }
  return {};
}

// A page that has no copy left cannot be published.
Status check_pages(const MoverParts& parts, pagetable::Region& region) {
  for (std::uint32_t i = 0; i < region.page_count; ++i) {
    const PageRef ref{&region, i};
    if (ref.state().has(PageState::kLost) && !parts.losses.is_unread(ref))
      return refuse(parts, region, VMEM_ERROR_INVALID_VALUE,
                    fmt::format("the page at {:#x} has no valid copy left; free it, and make it anew",
                                parts.core.address_of(ref)));
  }
  return {};
}

}  // namespace

// From the first step on, writes that reach the mover are refused, and pages are mapped for reading
// only. Mappings of before are taken away page by page; until then threads may hit them.
std::optional<Status> FreezeRequest::advance(MoverParts& parts) {
  VMEM_TRY(check_live({region, region->page_at(first_granule), 1}));
  if (!began_) {
    VMEM_TRY(check(parts));
    region->freeze = Freeze::begun;
    began_ = true;
  }
  for (; page_ < region->page_count; ++page_) {
    const PageRef ref{region, page_};
    // A page that is not mapped may be open for vmem_write, or on its way from below.
    auto hidden = ref.page().cpu_users != 0                ? Attempt::after_release
                  : parts.transfers.busy_below(ref.page()) ? Attempt::after_transfer
                                                           : parts.gate.hide(ref);
    if (!hidden) {
      VMEM_TRY(thaw(parts, *region));
      return std::unexpected(std::move(hidden).error());
    }
    if (*hidden != Attempt::done) {
      const std::optional<Error> over = out_of_time(parts, ref, *hidden);
      if (!over) return std::nullopt;
      VMEM_TRY(thaw(parts, *region));
      return std::unexpected(*over);
    }
    patience_.reset();
    ref.page().last_write = false;  // it is not to be fetched for writing
  }
  // Loads that were in flight when it began have ended.
  if (Status whole = check_pages(parts, *region); !whole) {
    VMEM_TRY(thaw(parts, *region));
    return whole;
  }
  region->freeze = Freeze::done;
  // Other nodes use its addresses: they belong to no region until they are granted anew, which may
  // be before the region has ended here.
  region->extent.keeps_range = true;
  unwritten.clear();
  for (std::uint32_t i = 0; i < region->page_count; ++i) {
    if (region->pages[i].version == 0) unwritten.push_back(i);
  }
  return Status{};
}

// A page on its way from a disk or a node takes as long as that, and GPU work as long as the
// patience of all requests.
std::optional<Error> FreezeRequest::out_of_time(const MoverParts& parts, PageRef ref, Attempt waits_for) {
  if (waits_for == Attempt::after_transfer) {
    if (!below_.over(parts.core)) return std::nullopt;
    return parts.stuck.unserved_error(ref);
  }
  if (!patience_.over(parts.core)) return std::nullopt;
  return Error{VMEM_ERROR_IN_USE, 0,
               fmt::format("the memory at {:#x} cannot be published: work that uses it does not end",
                           parts.core.address_of(ref))};
}

Status FreezeRequest::check(const MoverParts& parts) const {
  const auto refuse = [&](vmem_status status, std::string_view why) {
    return migration::refuse(parts, *region, status, why);
  };
  if (region->has_strangers())
    return refuse(VMEM_ERROR_INVALID_VALUE,
                  "it shares pages with other allocations, which could not be written any more; copy it to memory of "
                  "its own, of 1 MiB or more from vmem_malloc");
  if (region->read_only) return refuse(VMEM_ERROR_INVALID_VALUE, "it is mapped read-only from elsewhere");
  if (region->frozen()) return refuse(VMEM_ERROR_IN_USE, "it is published already");
  if (parts.core.config.threads->overlapping_holds(region->first.index, region->end_granule()).named != 0)
    return refuse(VMEM_ERROR_IN_USE, "it is held by an acquire; release it before");
  for (std::uint32_t i = 0; i < region->page_count; ++i) {
    if (region->pages[i].kept)
      return refuse(VMEM_ERROR_IN_USE,
                    "some of it has to stay mapped for a use that vmem cannot track, such as a graph or a library");
  }
  return check_pages(parts, *region);
}

std::optional<Status> ThawRequest::advance(MoverParts& parts) {
  VMEM_TRY(check_live({region, region->page_at(first_granule), 1}));
  return thaw(parts, *region);
}

std::optional<Status> RescueRequest::advance(MoverParts& parts) {
  VMEM_TRY(check_live({region, region->page_at(first_granule), 1}));
  VMEM_ASSIGN(const tiers::SlotId first, source->lay_out(region->page_bytes(), region->page_count));
  parts.below.add_rescue(*region, source, first);
  return Status{};
}

std::optional<Status> RetireRequest::advance(MoverParts& parts) {
  parts.core.config.space->retire(first, count);
  return Status{};
}

std::optional<Status> GrantRequest::advance(MoverParts& parts) { return parts.core.config.space->grant(first, count); }

}  // namespace vmem::migration
