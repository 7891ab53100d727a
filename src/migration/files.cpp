// Read-only regions: their pages are copies of a file's bytes. A page comes through a slot of host memory, which it gives back once its
// bytes are in HBM, and leaves HBM without a copy. So such regions need no room in host memory but for what is on its way, and are
// committed none.
#include <fmt/format.h>

#include <algorithm>

#include "migration/mover.hpp"

namespace vmem::migration {

using pagetable::kNoFrame;
using pagetable::Mapped;

namespace {

// Slots of pages that were read ahead and have not left for HBM yet: as many as may be on their way, twice. And what allocations leave of
// host memory for pages to come through: at least two of the largest.
constexpr std::uint64_t kBorrowedPages = 8;
constexpr std::uint64_t kBorrowedBytes = std::uint64_t{128} << 20;
constexpr std::uint64_t kReservedPages = 2;

}  // namespace

// The region's pages have their bytes: version 1, below.
void Mover::read_from(Region& region, std::shared_ptr<tiers::PageSource> source, tiers::SlotId first) {
  for (std::uint32_t i = 0; i < region.page_count; ++i) {
    Page& page = region.pages[i];
    page.version = 1;
    page.spilled = std::make_unique<pagetable::SpilledCopy>();
    page.spilled->slot = first + i;
    page.spilled->version = 1;
  }
  sources_[&region] = std::move(source);
}

Error Mover::read_only_error(const Region& region) const {
  return {
      VMEM_ERROR_INVALID_VALUE, 0,
      fmt::format("the memory at {:#x} is {}, mapped: it can be read, and not acquired for writing, copied to, filled "
                  "or written; copy it to memory of vmem_malloc and write there",
                  config_.space->address_of(region.first.index) + region.head_bytes, sources_.at(&region)->name())};
}

std::uint64_t Mover::largest_file_page() const {
  std::uint64_t largest = 0;
  for (const auto& [region, source] : sources_) largest = std::max(largest, region->page_bytes());
  return largest;
}

// Of slots; `waiting`: of those that are not in use in place.
std::uint64_t Mover::borrowed_bytes(bool waiting) const {
  std::uint64_t bytes = 0;
  for (const PageRef ref : borrowed_) bytes += waiting && ref.page().mapped == Mapped::slot ? 0 : ref.bytes();
  return bytes;
}

// For a page that is read ahead. What nobody waits for any more goes first.
bool Mover::room_to_borrow(std::uint64_t page_bytes) {
  const std::uint64_t limit = std::max(kBorrowedPages * page_bytes, kBorrowedBytes);
  const std::uint64_t now = borrowed_bytes(true) + page_bytes;
  if (now <= limit) return true;
  GivenUp given;
  give_up_borrowed(now - limit, false, given);
  return now - given.bytes <= limit;
}

// Whether a slot for this page would leave the pages of files a way through host memory.
bool Mover::leaves_room_for_files(PageRef ref) const {
  if (sources_.empty() || ref.region->read_only) return true;
  const tiers::TierUsage host = config_.backing->usage();
  const std::uint64_t reserved = std::min(kReservedPages * largest_file_page(), host.budget_bytes / 4);
  return host.used_bytes - borrowed_bytes(false) + ref.bytes() + reserved <= host.budget_bytes;
}

Mover::GivenUp Mover::give_up_borrowed(std::uint64_t bytes, Displaces displaces) {
  GivenUp given;
  give_up_borrowed(bytes, false, given);
  // What was read ahead for a use to come, or is used in place, goes only if there is nothing else.
  if (displaces != Displaces::unwanted) give_up_borrowed(bytes, true, given);
  return given;
}

void Mover::give_up_borrowed(std::uint64_t bytes, bool wanted, GivenUp& given) {
  const std::vector<PageRef> eldest_first(borrowed_.begin(),
                                          borrowed_.end());  // what is given up is no longer among them
  for (const PageRef ref : eldest_first) {
    if (given.bytes >= bytes) return;
    // What ends gives up its slots by itself.
    given.busy = given.busy || !ref.live();
    Page& page = ref.page();
    if (&page == serving_ || !ref.live()) continue;
    const bool needed = page.spilled->wanted || page.mapped == Mapped::slot;
    if (needed && !wanted) continue;
    if (page.mapped == Mapped::slot && !page.pinned) {
      const auto hidden = hide(ref);
      if (!hidden) eviction_failed(ref, hidden.error());
      if (hidden && *hidden == Evicted::busy) given.busy = slots_in_use_ = true;
    }
    const bool at_rest = page.mapped != Mapped::slot && page.cpu_users == 0 && !running(page.wait) && !spilling(page);
    given.busy = given.busy || (!at_rest && page.mapped != Mapped::slot);
    if (!at_rest) continue;
    drop_slot(ref);
    given.bytes += ref.bytes();
  }
}

// The page has its bytes in HBM.
void Mover::give_back_slot(PageRef ref) {
  const Page& page = ref.page();
  const bool served = ref.region->read_only && page.slot != kNoFrame && page.mapped == Mapped::frame;
  if (served && page.cpu_users == 0 && !running(page.wait) && !spilling(page)) drop_slot(ref);
}

// It was read ahead, and is not waited for any more.
void Mover::not_wanted(PageRef ref) {
  if (ref.page().spilled != nullptr) ref.page().spilled->wanted = false;
}

}  // namespace vmem::migration
