#include "toy_policy.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace vmem::migration {
namespace {

// What a page is worth to the program.
enum class Worth : std::uint8_t { dead, prefers_host, normal, prefers_hbm };

// The smaller leaves sooner. The arrival orders all pages, so the page size has to come before it:
// no two pages would be equal otherwise.
struct Rank {
  Worth worth{};
  bool other_size = false;
  std::uint64_t arrival = 0;
  auto operator<=>(const Rank&) const = default;
};

class Fifo final : public Policy {
 public:
  void region_begins(const RegionShape& shape) override {
    regions_.insert_or_assign(shape.id, Region{shape, std::vector<Page>(shape.pages)});
  }
  void region_ends(RegionId id) override { regions_.erase(id); }

  void page_arrived(PageId id, Cause) override {
    Page* page = find(id);
    if (page != nullptr && !page->resident()) *page = {++arrivals_, page->preference, false};
  }
  void page_left(PageId id) override {
    if (Page* page = find(id)) page->arrival = 0;
  }
  void page_prefers(PageId id, Preference preference) override {
    if (Page* page = find(id)) page->preference = preference;
  }
  void used(const Use&) override {}  // no use changes the order of arrival
  void pages_dead(PageId first, std::uint32_t count, bool dead) override {
    for (; count > 0; --count, ++first.index) {
      if (Page* page = find(first)) page->dead = dead;
    }
  }

  std::size_t victims(const VictimQuery& query, std::span<PageId> out) override {
    if (query.bytes_wanted == 0) return 0;
    if (!query.again) begin_round(query.device);
    std::size_t count = 0;
    for (; count < out.size(); ++count) {
      const auto best = best_victim(query);
      if (!best) break;
      find(*best)->offered = true;
      out[count] = *best;
    }
    return count;
  }
  std::size_t prefetches(const PrefetchQuery&, std::span<PageId>) override { return 0; }
  std::size_t leaves(const PrefetchQuery&, std::span<PageId>) override { return 0; }

  std::uint64_t metadata_bytes() const override {
    std::uint64_t bytes = 0;
    for (const auto& [id, region] : regions_) bytes += sizeof region + region.pages.size() * sizeof(Page);
    return bytes;
  }

 private:
  struct Page {
    std::uint64_t arrival = 0;  // counts from 1; 0: not in HBM
    Preference preference = Preference::normal;
    bool dead = false;     // its contents are worthless
    bool offered = false;  // since the last query without `again`
    bool resident() const { return arrival != 0; }
  };
  struct Region {
    RegionShape shape;
    std::vector<Page> pages;  // all of them from the start: later events allocate nothing
  };

  // Null if there is no such page.
  Page* find(PageId id) {
    const auto found = regions_.find(id.region);
    if (found == regions_.end() || id.index >= found->second.pages.size()) return nullptr;
    return &found->second.pages[id.index];
  }

  static Worth worth(const Page& page) {
    if (page.dead) return Worth::dead;
    if (page.preference == Preference::prefer_host) return Worth::prefers_host;
    return page.preference == Preference::prefer_hbm ? Worth::prefers_hbm : Worth::normal;
  }

  void begin_round(int device) {
    for (auto& [id, region] : regions_) {
      if (region.shape.device != device) continue;
      for (Page& page : region.pages) page.offered = false;
    }
  }

  std::optional<PageId> best_victim(const VictimQuery& query) const {
    std::optional<PageId> best;
    Rank best_rank;
    for (const auto& [id, region] : regions_) {
      if (region.shape.device != query.device) continue;
      for (std::uint32_t i = 0; i < region.shape.pages; ++i) {
        const Page& page = region.pages[i];
        if (!page.resident() || page.offered) continue;
        const Rank rank{worth(page), region.shape.page_bytes != query.page_bytes, page.arrival};
        if (best && best_rank < rank) continue;
        best = PageId{id, i};
        best_rank = rank;
      }
    }
    return best;
  }

  std::map<RegionId, Region> regions_;
  std::uint64_t arrivals_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_fifo_policy() { return std::make_unique<Fifo>(); }

}  // namespace vmem::migration
