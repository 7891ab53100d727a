// Hints: prefetch and advice.
#include <fmt/format.h>

#include <utility>

#include "migration/parts.hpp"
#include "migration/request.hpp"
#include "migration/requests/pins.hpp"

namespace vmem::migration {

std::optional<Status> PrefetchRequest::advance(MoverParts& parts) {
  VMEM_TRY(check_live(run));
  for (std::uint32_t i = 0; i < run.count; ++i) parts.ahead.ask({run.region, run.first + i});
  return Status{};
}

std::optional<Status> AdviseRequest::advance(MoverParts& parts) {
  VMEM_TRY(check_live(run));
  Device& device = parts.devices.of(*run.region);
  const std::uint64_t page_bytes = run.region->page_bytes();
  const auto each = [&](auto&& change) {
    for (std::uint32_t i = 0; i < run.count; ++i) change(PageRef{run.region, run.first + i});
  };
  const auto prefer = [&](Preference preference) {
    each([&](PageRef ref) {
      if (ref.page().in_place) return;
      parts.core.tell_policies([&](Policy& policy) { policy.page_prefers(ref.id(), preference); });
    });
  };
  const auto unpin = [&](Page& page) {
    if (page.pinned && !page.kept && !run.region->slab) device.pinned_bytes -= page_bytes;
    page.pinned = page.pinned && run.region->slab;
  };
  switch (advice) {
    case VMEM_ADVISE_NORMAL:
      each([&](PageRef ref) {
        unpin(ref.page());
        parts.in_place.advised(ref, false);
        ref.page().read_mostly = false;
      });
      prefer(Preference::normal);
      return Status{};
    case VMEM_ADVISE_READ_MOSTLY:
      each([](PageRef ref) { ref.page().read_mostly = true; });
      return Status{};
    case VMEM_ADVISE_PREFER_HBM:
      prefer(Preference::prefer_hbm);
      return Status{};
    case VMEM_ADVISE_PREFER_HOST:
      prefer(Preference::prefer_host);
      return Status{};
    case VMEM_ADVISE_PIN: {
      std::uint64_t more = 0;
      each([&](PageRef ref) { more += ref.page().pinned || ref.page().kept ? 0 : page_bytes; });
      VMEM_TRY(check_room_for_pins(device, more));
      device.pinned_bytes += more;
      each([&](PageRef ref) {
        parts.in_place.advised(ref, false);
        ref.page().pinned = true;
        parts.ahead.ask(ref);
      });
      return Status{};
    }
    case VMEM_ADVISE_IN_PLACE:
      if (parts.core.config.in_place == nullptr || run.region->has_strangers()) {
        return fail(
            VMEM_ERROR_UNSUPPORTED,
            run.region->shares() ? "VMEM_ADVISE_IN_PLACE needs whole pages, and this allocation shares pages; set the "
                                   "option share_pages=off"
            : run.region->slab
                ? "VMEM_ADVISE_IN_PLACE needs whole pages, and small allocations share pages; allocate more than 1 MiB"
                : "this machine's host memory cannot be mapped for the GPU; see `vmem doctor`");
      }
      each([&](PageRef ref) {
        unpin(ref.page());
        parts.in_place.advised(ref, true);
      });
      [[fallthrough]];
    case VMEM_ADVISE_EVICT: {
      Status first_failure;
      bool busy = false;
      each([&](PageRef ref) {
        auto evicted = parts.evictor.evict(ref);
        // A comparison in flight ends the eviction by itself.
        busy = busy || (evicted && comes(*evicted) &&
                        (*evicted == Attempt::after_gpu || !parts.fingerprints.comparing(ref.page())));
        if (!evicted && first_failure) first_failure = std::unexpected(evicted.error());
      });
      // The first attempt recorded events for the last uses; a second one sees whether they are
      // complete.
      if (first_failure && busy && !std::exchange(looked_, true)) return std::nullopt;
      return first_failure;
    }
    case VMEM_ADVICE_MAX_ENUM:
      break;
  }
  return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("{} is no advice", int(advice)));
}

}  // namespace vmem::migration
