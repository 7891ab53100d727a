#include "migration/policy/prefetch_plan.hpp"

#include <algorithm>

#include "migration/policy/bytes_in_flight.hpp"

namespace vmem::migration {
namespace {

constexpr std::uint64_t kAheadShare = 4;       // of the budget, for all scans together
constexpr std::uint32_t kLookPastPages = 256;  // how many resident pages to skip at most
constexpr std::uint32_t kNearFactor = 2, kFarFactor = 4;
constexpr std::uint32_t kOvertakenMax = 2;  // copy streams can swap adjacent pages, no more

}  // namespace

void PrefetchPlan::scan_moved(Region& region, Scan& scan) {
  if (prefetch_pages_ == 0) return;
  changed_ = true;
  forget_requests(region, scan);
  if (region.scanning) return;
  region.scanning = true;
  scanning_.push_back(region.shape.id);
}

void PrefetchPlan::scan_dropped(Region& region, Scan& scan) {
  for (const Scan::Asked& request : scan.asked) region.pages[request.page].asked = false;
  scan.asked.clear();
}

void PrefetchPlan::region_ends(Region& region) {
  if (region.scanning) std::erase(scanning_, region.shape.id);
  region.scanning = false;
  if (!scanning_.empty()) return;
  scanning_ = {};
  wishes_ = {};
  wished_pages_ = {};
}

// Removes requests from the scan's list: arrived, used, or overtaken so often that they count as
// dropped.
void PrefetchPlan::forget_requests(Region& region, Scan& scan) {
  std::uint32_t arrived_later = 0;
  for (auto request = scan.asked.rbegin(); request != scan.asked.rend(); ++request) {
    PageState& page = region.pages[request->page];
    request->overtaken += arrived_later;
    if (page.asked && request->overtaken >= kOvertakenMax) page.asked = false;
    if (page.resident()) ++arrived_later;
  }
  std::erase_if(scan.asked, [&](const Scan::Asked& request) { return !region.pages[request.page].asked; });
}

bool PrefetchPlan::active(const Scan& scan) const {
  return scan.confident() && clock_.age(scan.last_advance) <= clock_.budget();
}

void PrefetchPlan::collect_active() {
  std::erase_if(scanning_, [&](RegionId id) {
    Region& region = *regions_.find(id);
    region.scanning = false;
    const std::int64_t pages = region.shape.pages;
    for (Scan& scan : region.scans.all()) {
      if (!active(scan) || (!scan.cycled && scan.at_region_end(pages))) continue;
      region.scanning = true;
      wishes_.push_back({&region, &scan, 0, 0, 0});
    }
    return !region.scanning;
  });
}

std::uint32_t PrefetchPlan::share_pages(const Region& region) const {
  const std::uint64_t share = clock_.budget_bytes() / kAheadShare / wishes_.size() / region.shape.page_bytes;
  return std::uint32_t(std::min<std::uint64_t>(share, region.shape.pages));
}

std::uint32_t PrefetchPlan::distance(const Region& region) const {
  if (!region.shape.distant) return prefetch_pages_;
  return std::max(prefetch_pages_, std::uint32_t(kBytesInFlight / region.shape.page_bytes));
}

void PrefetchPlan::plan(Region& region, Scan& scan) {
  const std::uint32_t wanted = std::min(share_pages(region), distance(region));
  const std::uint32_t found = plan_along(region, wanted, scan, false);
  // A resident loop inside the region: the pages behind its end are needed at some time.
  if (scan.cycled && scan.turn != Scan::kRegionEnd) plan_along(region, (wanted - found) / 2, scan, true);
}

// Adds the pages to request. Returns how many of the scan's distance are taken, earlier requests
// included. If the missing pages lie together far ahead, the link would idle until the scan is near
// them, and then be overloaded. So more is fetched early, each page in place of one just used,
// which spreads the missing pages over the scan's way within a few passes.
std::uint32_t PrefetchPlan::plan_along(Region& region, std::uint32_t wanted, const Scan& scan, bool past_turn) {
  if (wanted == 0) return 0;
  const std::uint32_t wanted_far = std::min(kFarFactor * wanted, share_pages(region));
  const std::uint64_t missing = std::max(region.shape.pages - region.resident_pages, 1u);
  // Twice as far as if the missing pages were spread evenly.
  const std::uint64_t near = kNearFactor * wanted * region.shape.pages / missing;
  std::uint64_t walked = 0;
  std::uint32_t found = 0;
  std::uint32_t found_near = 0;
  const auto visit = [&](std::uint32_t index) {
    ++walked;
    PageState& page = region.pages[index];
    if (page.resident() && !page.ahead) return true;
    const Preference preference{std::uint8_t(page.preference)};
    const bool wanted_here = preference != Preference::prefer_host && preference != Preference::in_place;
    if (!page.resident() && !page.asked && wanted_here) {
      page.asked = true;
      wished_pages_.push_back(index);
    }
    ++found;
    if (walked <= near) ++found_near;
    return found < wanted || (found_near < wanted && found < wanted_far);
  };
  const std::uint64_t half_budget = clock_.budget_bytes() / 2 / region.shape.page_bytes;
  const std::uint32_t limit = std::max(wanted, std::uint32_t(std::min<std::uint64_t>(half_budget, kLookPastPages)));
  if (past_turn) {
    scan.walk_past_turn(region.shape.pages, limit, visit);
  } else {
    scan.walk(region.shape.pages, limit, visit);
  }
  return found;
}

std::size_t PrefetchPlan::next(std::uint64_t bytes_room, std::span<PageId> out) {
  if (!changed_ || bytes_room == 0 || out.empty()) return 0;
  collect_active();
  for (Wish& wish : wishes_) {
    wish.begin = wished_pages_.size();
    if (wish.scan->changed) plan(*wish.region, *wish.scan);
    wish.end = wished_pages_.size();
  }
  const std::size_t count = share_out(bytes_room, out);
  take_back_unanswered();
  return count;
}

// Takes the first page of each scan, then the second of each, and so on while there is room.
std::size_t PrefetchPlan::share_out(std::uint64_t bytes_room, std::span<PageId> out) {
  std::size_t count = 0;
  const std::size_t first = wishes_.empty() ? 0 : turn_++ % wishes_.size();
  for (bool progress = true; progress;) {
    progress = false;
    for (std::size_t i = 0; i < wishes_.size() && count < out.size(); ++i) {
      Wish& wish = wishes_[(first + i) % wishes_.size()];
      const RegionShape& shape = wish.region->shape;
      if (wish.begin + wish.given == wish.end || shape.page_bytes > bytes_room) continue;
      const std::uint32_t page = wished_pages_[wish.begin + wish.given++];
      wish.scan->asked.push_back({page});
      out[count++] = {shape.id, page};
      bytes_room -= shape.page_bytes;
      progress = true;
    }
  }
  return count;
}

void PrefetchPlan::take_back_unanswered() {
  changed_ = false;
  for (Wish& wish : wishes_) {
    const bool complete = wish.begin + wish.given == wish.end;
    wish.scan->changed = wish.scan->changed && !complete;
    changed_ = changed_ || !complete;
    for (std::size_t i = wish.begin + wish.given; i < wish.end; ++i) wish.region->pages[wished_pages_[i]].asked = false;
  }
  wishes_.clear();
  wished_pages_.clear();
}

}  // namespace vmem::migration
