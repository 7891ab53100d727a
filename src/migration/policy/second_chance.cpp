#include "migration/policy/second_chance.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include "migration/policy/page_state.hpp"
#include "migration/policy/prefetch_plan.hpp"
#include "migration/policy/reuse_clock.hpp"
#include "migration/policy/shelf.hpp"

namespace vmem::migration {

struct DeviceState {
  DeviceState(RegionTable& regions, std::uint64_t budget_bytes, std::uint32_t prefetch_pages)
      : clock(budget_bytes), plan(regions, clock, prefetch_pages) {}

  // The distance assumed for a page used only once: two passes over all regions. It is longer than
  // any known distance, yet finite: pages unused for longer make room for such a page.
  Ticks unknown_distance() const {
    return std::min(clock.ticks(std::max(2 * region_bytes, 4 * clock.budget_bytes())), kAgeMax / 2);
  }

  ReuseClock clock;
  PrefetchPlan plan;
  std::map<std::uint64_t, Shelf, std::greater<>> shelves;  // by page size
  std::uint64_t region_bytes = 0;
  std::uint32_t region_count = 0;
  Ticks swept = 0;
};

namespace {

class SecondChance final : public Policy {
 public:
  explicit SecondChance(const SecondChanceOptions& options) : options_(options) {}

  void region_begins(const RegionShape& shape) override;
  void region_ends(RegionId id) override;
  void page_arrived(PageId id, Cause cause) override;
  void page_left(PageId id) override;
  void page_prefers(PageId id, Preference preference) override;
  void used(const Use& use) override;
  void pages_dead(PageId, std::uint32_t, bool) override {}  // old pages leave by age
  std::size_t victims(const VictimQuery& query, std::span<PageId> out) override;
  std::size_t prefetches(const PrefetchQuery& query, std::span<PageId> out) override;
  std::size_t leaves(const PrefetchQuery&, std::span<PageId>) override { return 0; }
  std::uint64_t metadata_bytes() const override { return metadata_bytes_; }

 private:
  DeviceState& device(int index);
  void use_page(Region& region, PageId id);
  void learn_distance(ReuseClock& clock, const Region& region, PageState& page);
  void sweep(DeviceState& device);
  std::optional<Candidate> best_victim(DeviceState& device, std::uint64_t page_bytes);

  const SecondChanceOptions options_;
  RegionTable regions_;
  std::map<int, DeviceState> devices_;
  std::uint64_t metadata_bytes_ = 0;
};

std::uint64_t bytes_for(const RegionShape& shape) { return sizeof(Region) + shape.pages * sizeof(PageState); }

DeviceState& SecondChance::device(int index) {
  const auto found = devices_.find(index);
  if (found != devices_.end()) return found->second;
  const bool known = index >= 0 && std::size_t(index) < options_.hbm_bytes.size();
  const std::uint64_t budget_bytes = known ? options_.hbm_bytes[std::size_t(index)] : 0;
  return devices_.try_emplace(index, regions_, budget_bytes, options_.prefetch_pages).first->second;
}

void SecondChance::region_begins(const RegionShape& shape) {
  region_ends(shape.id);
  if (shape.id.value == 0 || shape.page_bytes == 0) return;
  DeviceState& owner = device(shape.device);
  Shelf& shelf = owner.shelves.try_emplace(shape.page_bytes, regions_, owner.clock, shape.page_bytes).first->second;
  auto region = std::make_unique<Region>();
  region->shape = shape;
  region->device = &owner;
  region->shelf = &shelf;
  region->pages.resize(shape.pages);
  regions_.add(std::move(region));
  ++shelf.region_count;
  ++owner.region_count;
  owner.region_bytes += shape.pages * shape.page_bytes;
  metadata_bytes_ += bytes_for(shape);
}

void SecondChance::region_ends(RegionId id) {
  Region* region = regions_.find(id);
  if (!region) return;
  DeviceState& owner = *region->device;
  for (std::uint32_t i = 0; i < region->shape.pages; ++i)
    if (region->pages[i].resident()) region->shelf->remove({id, i});
  owner.plan.region_ends(*region);
  owner.region_bytes -= region->shape.pages * region->shape.page_bytes;
  metadata_bytes_ -= bytes_for(region->shape);
  if (--region->shelf->region_count == 0) owner.shelves.erase(region->shape.page_bytes);
  const bool last = --owner.region_count == 0;
  const int index = region->shape.device;
  regions_.remove(id);
  if (last) devices_.erase(index);
}

void SecondChance::page_arrived(PageId id, Cause cause) {
  PageState* page = regions_.find(id);
  if (!page || page->resident()) return;
  Region& region = *regions_.find(id.region);
  // A use reported after the request or fetch has overtaken the page: it does not arrive ahead.
  page->ahead = !page->awaited || (cause == Cause::prefetch && page->asked);
  page->asked = page->awaited = false;
  // Fetched for an imminent use, which counts from now: the distance is known, and the use itself
  // does not count again.
  if (page->ahead) {
    if (page->used) learn_distance(region.device->clock, region, *page);
    page->last = region.device->clock.now();
  }
  region.shelf->insert(id);
  ++region.resident_pages;
}

void SecondChance::page_left(PageId id) {
  PageState* page = regions_.find(id);
  if (!page || !page->resident()) return;
  Region& region = *regions_.find(id.region);
  region.shelf->remove(id);
  --region.resident_pages;
  page->ahead = false;
}

void SecondChance::page_prefers(PageId id, Preference preference) {
  PageState* page = regions_.find(id);
  if (!page) return;
  page->preference = std::uint8_t(preference);
  if (page->resident()) regions_.find(id.region)->shelf->refresh(id);
}

void SecondChance::used(const Use& use) {
  Region* region = regions_.find(use.region);
  if (!region || use.first >= region->shape.pages) return;
  DeviceState& owner = *region->device;
  const std::uint32_t count = std::min(use.count, region->shape.pages - use.first);
  for (std::uint32_t i = 0; i < count; ++i) use_page(*region, {use.region, use.first + i});
  // No read-ahead in undeclared regions: adjacent pages hold other blocks, or were used together.
  if (region->shape.undeclared) return sweep(owner);
  const auto dropped = [&](Scan& scan) { owner.plan.scan_dropped(*region, scan); };
  Scan* scan = region->scans.observe({use.first, count, use.stream}, region->shape.pages, owner.clock.now(), dropped);
  if (scan) owner.plan.scan_moved(*region, *scan);
  sweep(owner);
}

void SecondChance::use_page(Region& region, PageId id) {
  ReuseClock& clock = region.device->clock;
  PageState& page = region.pages[id.index];
  clock.advance(region.shape.page_bytes);
  if (page.used && !page.ahead) learn_distance(clock, region, page);
  page.used = true;
  page.ahead = false;
  page.asked = false;
  page.last = clock.now();
  if (page.resident()) {
    region.shelf->refresh(id);
  } else {
    page.awaited = true;
  }
}

// Uses close together are one use: a page that a scan touches four times returns after a whole
// cycle. Only a page that keeps returning so soon is hot.
void SecondChance::learn_distance(ReuseClock& clock, const Region& region, PageState& page) {
  const Ticks distance = clock.age(page.last);
  if (distance <= clock.ticks(region.shape.page_bytes)) return;  // no other use in between
  const bool is_short = distance < clock.burst_limit();
  if (is_short && page.bursts < PageState::kBurstsMax) {
    ++page.bursts;
    if (page.distance() >= ReuseDistance::encode(clock.burst_limit())) clock.note_repeat(distance);
    return;
  }
  page.learn(ReuseDistance::encode(distance));
  if (!is_short) page.bursts /= 2;
}

// Moves old stamps forward, so that the wrapping clock never makes them look new.
void SecondChance::sweep(DeviceState& device) {
  if (device.clock.age(device.swept) < kAgeMax / 2) return;
  device.swept = device.clock.now();
  for (const auto& region : regions_.all()) {
    if (!region || region->device != &device) continue;
    for (PageState& page : region->pages)
      if (device.clock.age(page.last) > kAgeMax) page.last = device.clock.now() - kAgeMax;
  }
}

// The best of all page sizes. A page of the requested size counts twice its distance, because its
// frame is reusable as it is. No more than that: otherwise a new region with another page size
// would be confined to its first frame while idle pages fill the rest.
std::optional<Candidate> SecondChance::best_victim(DeviceState& device, std::uint64_t page_bytes) {
  std::optional<Candidate> best;
  for (auto& [size, shelf] : device.shelves) {
    auto candidate = shelf.best(device.unknown_distance());
    if (!candidate) continue;
    if (size == page_bytes) candidate->distance = 2 * candidate->distance + 1;
    const bool better = !best || candidate->rank > best->rank ||
                        (candidate->rank == best->rank && candidate->distance > best->distance);
    if (better) best = candidate;
  }
  return best;
}

std::size_t SecondChance::victims(const VictimQuery& query, std::span<PageId> out) {
  const auto found = devices_.find(query.device);
  if (found == devices_.end() || query.bytes_wanted == 0) return 0;
  DeviceState& device = found->second;
  if (!query.again) {
    for (auto& [size, shelf] : device.shelves) shelf.end_round();
  }
  std::size_t count = 0;
  for (; count < out.size(); ++count) {
    const auto candidate = best_victim(device, query.page_bytes);
    if (!candidate) break;
    regions_.find(candidate->page.region)->shelf->set_aside(candidate->page);
    out[count] = candidate->page;
  }
  return count;
}

std::size_t SecondChance::prefetches(const PrefetchQuery& query, std::span<PageId> out) {
  const auto found = devices_.find(query.device);
  return found == devices_.end() ? 0 : found->second.plan.next(query.bytes_room, out);
}

}  // namespace

std::unique_ptr<Policy> make_second_chance_policy(const SecondChanceOptions& options) {
  return std::make_unique<SecondChance>(options);
}

}  // namespace vmem::migration
