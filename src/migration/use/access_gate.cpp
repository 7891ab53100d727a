#include "migration/use/access_gate.hpp"

namespace vmem::migration {

using pagetable::Access;
using pagetable::Mapped;

Attempt AccessGate::held(PageRef ref, std::uint32_t own_holds) const {
  const auto holds = core_.config.threads->overlapping_holds(ref.begin(), ref.end());
  if (holds.named > own_holds) return Attempt::after_release;
  return holds.of_everything != 0 ? Attempt::after_gpu : Attempt::done;
}

Attempt AccessGate::withdraw(PageRef ref, std::uint32_t own_holds) {
  Page& page = ref.page();
  const PageState before = ref.state();
  residency_.publish(ref, before.with(Access::none).clear(PageState::kNotify | PageState::kPending));
  Attempt why = Attempt::done;
  if (!core_.config.threads->barrier_all_threads()) {  // no guarantee: try again
    why = Attempt::after_gpu;
  } else if (why = held(ref, own_holds); why == Attempt::done) {
    uses_.drain();
    if (!uses_.uses_complete(*ref.region, page)) why = Attempt::after_gpu;
  }
  if (why != Attempt::done) {
    residency_.publish(ref, before);
    ++core_.counters.eviction_cancels;
  }
  return why;
}

Result<Attempt> AccessGate::hide(PageRef ref, std::uint32_t own_holds) {
  Page& page = ref.page();
  if (page.mapped == Mapped::nothing) return Attempt::done;
  uses_.start_tracking();
  if (page.kept || page.cpu_users != 0) return Attempt::after_release;
  if (const Attempt why = held(ref, own_holds); why != Attempt::done) return why;
  if (transfers_.running(page.wait) || !uses_.uses_complete(*ref.region, page)) return Attempt::after_gpu;
  const PageState before = ref.state();
  if (const Attempt why = withdraw(ref, own_holds); why != Attempt::done) return why;
  if (auto unmapped = mapper_.unmap(ref); !unmapped) {
    residency_.publish(ref, before);
    return std::unexpected(unmapped.error());
  }
  page.mapped = Mapped::nothing;
  return Attempt::done;
}

}  // namespace vmem::migration
