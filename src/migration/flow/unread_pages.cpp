#include "migration/flow/unread_pages.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/log.hpp"
#include "base/sizes.hpp"

namespace vmem::migration {

using pagetable::kNoFrame;
using pagetable::Mapped;

void UnreadPages::load_failed(PageRef ref, const tiers::Completion& completion) {
  const Page& page = ref.page();
  if (page.mapped != Mapped::frame) return;
  const bool below = page.spilled_current() && page.spilled->verified();
  const bool kept = completion.outcome == tiers::Outcome::failed && (page.slot_current() || below);
  if (!kept || writes_unsaid(*ref.region)) return lose(ref, completion.error);
  keep(ref, completion.error, std::nullopt);
}

void UnreadPages::keep(PageRef ref, const Error& error, std::optional<NearSlot> good) {
  VMEM_LOG_WARN("the page at {:#x} could not be fetched, and is kept where it was: {}", parts_.core.address_of(ref),
                error.message);
  parts_.losses.add_unread(ref, {.why = error.message, .good = good});
}

void UnreadPages::lose(PageRef ref, const Error& error) {
  Page& page = ref.page();
  const bool busy = page.cpu_users != 0 || parts_.transfers.running(page.wait) || parts_.transfers.running(page.store);
  if (busy || !parts_.below.rescue(ref, error)) return parts_.losses.lose(ref, error);
  page.slot_version = 0;
  if (page.mapped != Mapped::nothing || page.has_frame()) return keep(ref, error, std::nullopt);
  if (page.slot != kNoFrame) parts_.near.drop(ref);
}

Result<bool> UnreadPages::take_back(PageRef ref, std::uint32_t own_holds) {
  if (!parts_.losses.is_unread(ref)) return true;
  VMEM_ASSIGN(const Attempt hidden, parts_.gate.hide(ref, own_holds));
  if (hidden != Attempt::done || parts_.transfers.running(ref.page().store)) return false;
  Page& page = ref.page();
  if (page.owns_frame()) {
    parts_.devices.of(*ref.region).hbm.give_back(page.frame, 0, nullptr);
    page.leave_frame();
    parts_.core.config.policy->page_left(ref.id());
  }
  parts_.contents.drop_standby(ref);
  const std::optional<Losses::Unread> unread = parts_.losses.take_unread(ref);
  if (unread->good) {
    parts_.near.drop(ref);
    parts_.near.assign(ref, *unread->good);
    page.slot_version = page.version;
  }
  if (page.slot != kNoFrame && !page.slot_current()) parts_.near.drop(ref);
  if (page.slot != kNoFrame) parts_.near.came_to_host_memory(ref);
  parts_.residency.publish(ref, PageState(0));
  return true;
}

Error UnreadPages::error(PageRef ref, std::uint32_t own_holds) {
  if (const Losses::Unread* const unread = parts_.losses.unread(ref)) {
    Error error{VMEM_ERROR_DRIVER, 0,
                fmt::format("the page at {:#x} ({}) could not be fetched to HBM, and work queued behind the copy has "
                            "read other bytes; the page is kept, so repeat that work: {}",
                            parts_.core.address_of(ref), format_bytes(ref.bytes()), unread->why)};
    const auto taken = take_back(ref, own_holds);
    return taken ? error : taken.error();
  }
  const std::string reason = parts_.losses.reason(ref);
  return {VMEM_ERROR_LOST, 0,
          fmt::format("the page at {:#x} ({}) has no valid copy left{}{}", parts_.core.address_of(ref),
                      format_bytes(ref.bytes()), reason.empty() ? "" : ": ", reason)};
}

bool UnreadPages::writes_unsaid(const Region& region) const {
  return !parts_.mapper.write_protected(region) && (region.undeclared || region.launched);
}

}  // namespace vmem::migration
