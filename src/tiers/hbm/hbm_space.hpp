// Room for pages in slabs of HBM, counted in granules. A page takes runs of granules wherever they
// are free, so free granules are never too scattered for it. A limit takes the last slabs out of
// use; pages that lie there have to be moved before the slab can be freed.
//
// Pure; the caller locks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace vmem::tiers {

// Granules that follow each other in one slab.
struct GranuleRun {
  std::uint32_t slab = 0, first = 0, count = 0;
};
using GranuleRuns = std::vector<GranuleRun>;

class HbmSpace {
 public:
  // `slabs`: granules of each. None has memory yet.
  explicit HbmSpace(const std::vector<std::uint32_t>& slabs);

  // nullopt: so many are not free, in the slabs in use that have memory.
  std::optional<GranuleRuns> take(std::uint64_t granules);
  void give_back(const GranuleRuns& runs);

  // The first slabs that fit into so many granules are in use. Returns how many granules those are.
  std::uint64_t limit(std::uint64_t granules);
  bool is_in_use(std::uint32_t slab) const { return slabs_[slab].in_use; }
  // The slab got memory, or lost it.
  void set_memory(std::uint32_t slab, bool has_memory) { slabs_[slab].has_memory = has_memory; }
  // A slab in use that has no memory; a slab with memory that is not in use, and has no page.
  std::optional<std::uint32_t> lacks_memory() const;
  std::optional<std::uint32_t> is_superfluous() const;

  bool is_limited() const;  // slabs have memory that are not in use

  std::uint64_t memory_granules() const;  // of all slabs that have memory
  std::uint64_t usable_granules() const;  // of slabs in use that have memory
  std::uint64_t free_granules() const;    // of these, in no page

 private:
  struct Slab {
    std::uint32_t granules = 0;
    std::uint32_t free_count = 0;
    bool in_use = true, has_memory = false;
    std::map<std::uint32_t, std::uint32_t> free;  // first granule → count; no two touch
    bool takes_pages() const { return in_use && has_memory; }
  };
  GranuleRun take_from(std::uint32_t slab, std::map<std::uint32_t, std::uint32_t>::iterator run, std::uint32_t count);

  std::vector<Slab> slabs_;
};

}  // namespace vmem::tiers
