// Acquires: they make ranges usable for GPU work.
#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "migration/parts.hpp"
#include "migration/place/full_error.hpp"
#include "migration/request.hpp"
#include "migration/requests/room_later.hpp"

namespace vmem::migration {

using pagetable::Access;
using pagetable::Mapped;

std::optional<Status> AcquireRequest::advance(MoverParts& parts) {
  if (!began_us_) {
    began_us_ = parts.core.now_us();
    ++parts.core.counters.acquire_misses;
    worth_frames_ = worth_frames(parts);
    VMEM_TRY(check_writable(parts));
  }
  auto served = serve_wants(parts);
  if (served) {
    const std::uint64_t took_us = parts.core.now_us() - *began_us_;
    parts.core.counters.acquire_wait_us += took_us;
    parts.core.record([&](trace::Recorder& to) { to.add(*began_us_ * 1000, trace::Wait{took_us * 1000, awaited_}); });
  }
  if (!served || *served) return served;
  // Reads from below that started for this request are no longer wanted.
  for (const Want& want : wants) {
    for (std::uint32_t i = 0; i < want.run.count; ++i) parts.recall.not_wanted({want.run.region, want.run.first + i});
  }
  return served;
}

Status AcquireRequest::check_writable(const MoverParts& parts) const {
  for (const Want& want : wants) {
    if (want.access == Access::write) VMEM_TRY(parts.below.check_writable(*want.run.region));
  }
  return {};
}

// A kernel that repeatedly reads host memory runs at a fraction of its speed. Pages go to HBM if
// all wants with move_to_hbm together fit into 3/4 of it.
bool AcquireRequest::worth_frames(const MoverParts& parts) const {
  std::uint64_t bytes = 0, budget = 0;
  std::vector<PageId> shared;  // several wants may name one
  for (const Want& want : wants) {
    if (!want.move_to_hbm) continue;
    const Region& region = *want.run.region;
    budget = parts.devices[region.device].config.hbm_bytes;
    for (std::uint32_t i = want.run.first; i < want.run.first + want.run.count; ++i) {
      if (region.pages[i].in_place) continue;
      if (region.shares()) shared.push_back(region.page_id(i));
      bytes += region.page_bytes();
    }
  }
  std::ranges::sort(shared);
  for (std::size_t i = 1; i < shared.size(); ++i)
    bytes -= shared[i] == shared[i - 1] ? parts.core.config.space->find(shared[i].region)->page_bytes() : 0;
  return bytes <= budget / 4 * 3;
}

std::optional<Status> AcquireRequest::serve_wants(MoverParts& parts) {
  for (; want_ < wants.size(); ++want_, page_ = 0) {
    const Want& want = wants[want_];
    for (; page_ < want.run.count; ++page_) {
      const std::uint32_t index = want.run.first + page_;
      const OldBytes old = index - want.discard_first < want.discard_count ? OldBytes::discard : OldBytes::fetch;
      const pagetable::Page& page = want.run.region->pages[index];
      if (want.needs_hbm) parts.in_place.needed_in_hbm({want.run.region, index});
      const bool was_in_place = page.mapped == Mapped::slot;
      const Effort effort{.evict = !no_frames_,
                          .wait = may_wait_,
                          .move_to_hbm = want.move_to_hbm && worth_frames_ && !no_frames_,
                          .needs_hbm = want.needs_hbm};
      // own_holds scans all wants: call it only if the page's mapping may have to change.
      const bool allowed = PageState(page.state.load(std::memory_order_relaxed)).allows(want.access);
      const bool changes = was_in_place || (page.mapped != Mapped::nothing && !allowed);
      const std::uint32_t own = changes ? own_holds({want.run.region, index, 1}) : 0;
      auto served = parts.bring_in.serve({want.run.region, index}, want.access, old, effort, own);
      if (served && served->lacks != Lacks::nothing) awaited_ = PageRef{want.run.region, index}.begin();
      if (!served && may_find_room_later(parts, served.error())) served = Served{Lacks::bytes, Attempt::after_transfer};
      if (!served) return std::unexpected(std::move(served).error());
      switch (served->lacks) {
        case Lacks::nothing:
          if (page.mapped != Mapped::slot) {
            patience_.reset();
            below_.reset();
            continue;
          }
          if (!counted_in_place_) {
            ++parts.core.counters.in_place_acquires;
            VMEM_LOG_DEBUG("in place at {:#x}: {}", parts.core.address_of({want.run.region, index}),
                           may_wait_ ? "no frame can be had" : "waited in vain for one");
          }
          counted_in_place_ = true;
          no_frames_ = no_frames_ || !(was_in_place || want.run.region->pages[index].in_place);
          below_.reset();
          continue;
        case Lacks::bytes:
          recall_ahead(parts);
          // Nobody can tell when slots in use come free: their users may wait for work launched
          // after this request.
          if (served->attempt == Attempt::after_gpu && patience_.over_limit(parts.core, parts.core.config.slot_wait_us))
            return std::unexpected(full_error(parts.core, parts.devices, parts.near, parts.below,
                                              "a page below host memory", want.run.region->page_bytes()));
          if (below_.over(parts.core)) return std::unexpected(parts.stuck.unserved_error({want.run.region, index}));
          return std::nullopt;
        case Lacks::frame:
        case Lacks::access:
          break;
      }
      parts.core.counters.acquire_waits += patience_.waiting() ? 0 : 1;
      if (!patience_.over(parts.core)) return std::nullopt;
      if (served->lacks == Lacks::access)
        return std::unexpected(parts.bring_in.still_read_error({want.run.region, index}));
      may_wait_ = false;
      --page_;  // retry, now in place
    }
  }
  return Status{};
}

// While a page is being read from below host memory, starts reads of the next ones.
void AcquireRequest::recall_ahead(MoverParts& parts) const {
  if (!parts.below.any()) return;
  std::uint32_t page = page_ + 1;
  for (std::size_t i = want_; i < wants.size(); ++i, page = 0) {
    for (; page < wants[i].run.count; ++page) {
      const PageRef ref{wants[i].run.region, wants[i].run.first + page};
      const bool discard = ref.index - wants[i].discard_first < wants[i].discard_count;
      if (!discard && !parts.recall.ahead(ref, Wanted::now)) return;
    }
  }
}

// The number of the caller's published ranges that contain the page.
std::uint32_t AcquireRequest::own_holds(const PageRun& page) const {
  return std::uint32_t(std::count_if(wants.begin(), wants.end(), [&](const Want& want) {
    return want.run.region == page.region && page.first - want.run.first < want.run.count;
  }));
}

}  // namespace vmem::migration
