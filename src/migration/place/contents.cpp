#include "migration/place/contents.hpp"

namespace vmem::migration {

using pagetable::kNoFrame;

void Contents::forget(PageRef ref) {
  Page& page = ref.page();
  page.version = page.slot_version = 0;
  page.writes_believed = page.writes_in_a_row = 0;
  page.life = ref.region->life.load(std::memory_order_seq_cst);
  // Versions start over: a transfer in flight must not pass for one of the new contents.
  if (transfers_.busy_below(page)) transfers_.at(page.spilled->transfer).version = 0;
  below_.drop(ref);
  if (page.slot != kNoFrame && !transfers_.running(page.store) && !transfers_.busy_below(page)) near_.drop(ref);
}

void Contents::drop_standby(PageRef ref) {
  Page& page = ref.page();
  if (!page.standby()) return;
  tiers::FramePool& hbm = devices_.of(*ref.region).hbm;
  const std::uint64_t busy_until = hbm.frame(page.frame).busy_until;
  hbm.retake(page.frame);
  hbm.give_back(page.frame, busy_until, nullptr);
  page.leave_frame();
}

void Contents::keep_no_longer(PageRef ref) {
  Page& page = ref.page();
  if (!page.kept) return;
  page.kept = false;
  if (!page.pinned) devices_.of(*ref.region).pinned_bytes -= ref.bytes();
}

}  // namespace vmem::migration
