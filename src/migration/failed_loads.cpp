// Loads into HBM that fail after the page was mapped. Work that waited for the load has read other bytes, which the next call
// on the page reports. The page is kept where a copy of its bytes is left: its mapping is taken back before it is used again.
#include <fmt/format.h>

#include <utility>

#include "base/log.hpp"
#include "base/options.hpp"
#include "migration/mover.hpp"

namespace vmem::migration {

using pagetable::kNoFrame;
using pagetable::Mapped;

void Mover::load_failed(PageRef ref, const tiers::Completion& completion) {
  const Page& page = ref.page();
  if (page.mapped != Mapped::frame) return;
  const bool below = page.spilled_current() && !page.spilled->doubtful;
  const bool kept = completion.outcome == tiers::Outcome::failed && (page.slot_current() || below);
  if (!kept || writes_unsaid(*ref.region)) return lose_page(ref, completion.error);
  keep_unread(ref, completion.error, std::nullopt);
}

// Work may have written to the page without a new version.
bool Mover::writes_unsaid(const Region& region) const {
  return !guarded(region) && (region.undeclared || region.launched);
}

// `good`: where its bytes are, if not in the page's own slot or below.
void Mover::keep_unread(PageRef ref, const Error& error, std::optional<Place> good) {
  VMEM_LOG_WARN("the page at {:#x} could not be fetched, and is kept where it was: {}", address_of(ref), error.message);
  unread_[ref.id()] = {.why = error.message, .good = good};
  publish(ref, PageState(ref.page().state.load()).with(Access::none).set(PageState::kLost));
}

// False: it is still used.
Result<bool> Mover::take_back_unread(PageRef ref, std::uint32_t own_holds) {
  const auto found = unread_.find(ref.id());
  if (found == unread_.end()) return true;
  VMEM_ASSIGN(const Evicted hidden, hide(ref, own_holds));
  if (hidden != Evicted::done || running(ref.page().store)) return false;
  Page& page = ref.page();
  if (page.frame != kNoFrame && !page.standby) {
    device_of(*ref.region).hbm.give_back(page.frame, 0, nullptr);
    page.frame = kNoFrame;
    config_.policy->page_left(ref.id());
  }
  drop_standby(ref);
  if (found->second.good) {
    drop_slot(ref);
    settle_in(ref, *found->second.good);
    page.slot_version = page.version;
  }
  if (page.slot != kNoFrame) came_to_host_memory(ref);
  unread_.erase(found);
  publish(ref, PageState(0));
  return true;
}

// What a call on a page that is lost, or could not be fetched, answers.
Error Mover::lost_error(PageRef ref, std::uint32_t own_holds) {
  if (const auto unread = unread_.find(ref.id()); unread != unread_.end()) {
    Error error{VMEM_ERROR_DRIVER, 0,
                fmt::format("the page at {:#x} ({}) could not be fetched to HBM, and work queued behind the copy has "
                            "read other bytes; the page is kept, so repeat that work: {}",
                            address_of(ref), format_bytes(ref.bytes()), unread->second.why)};
    const auto taken = take_back_unread(ref, own_holds);
    return taken ? error : taken.error();
  }
  const auto known = losses_.find(ref.id());
  return {VMEM_ERROR_LOST, 0,
          fmt::format("the page at {:#x} ({}) has no valid copy left{}{}", address_of(ref), format_bytes(ref.bytes()),
                      known == losses_.end() ? "" : ": ", known == losses_.end() ? std::string() : known->second)};
}

void Mover::lose_page(PageRef ref, const Error& error) {
  VMEM_LOG_ERROR("the page at {:#x} is lost: {}", address_of(ref), error.message);
  losses_[ref.id()] = error.message;
  publish(ref, PageState(ref.page().state.load()).set(PageState::kLost));
}

}  // namespace vmem::migration
