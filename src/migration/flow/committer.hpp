// What allocations are promised: counts pages by size, and checks with place/commitments.hpp that
// every page has a place.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "migration/core.hpp"
#include "migration/flow/lending.hpp"
#include "migration/growth.hpp"
#include "migration/place/below.hpp"
#include "migration/place/commitments.hpp"
#include "migration/place/devices.hpp"
#include "migration/place/near_slots.hpp"
#include "migration/place/need_below.hpp"

namespace vmem::migration {

class Committer {
 public:
  Committer(Core& core, Devices& devices, const NearSlots& near, const Below& below, NeedBelow& need, Lending& lending)
      : core_(core), devices_(devices), near_(near), below_(below), need_(need), lending_(lending) {}

  struct PageCounts {
    std::uint64_t declared = 0, undeclared = 0;
    std::uint64_t& of(const Region& region) { return region.undeclared ? undeclared : declared; }
  };
  // Of live pages of that size.
  PageCounts& counts(std::uint64_t page_bytes) { return counts_[page_bytes]; }
  std::uint64_t largest_page() const;  // of live regions

  // What tiers below have, or could get.
  enum class Room : std::uint8_t { granted, obtainable };
  Memories memories(Room below = Room::granted) const;  // includes the commitments
  PageSizes page_sizes_with(std::uint64_t wanted) const;
  // Errors: OUT_OF_MEMORY.
  Status commit(Device& device, std::uint64_t bytes, const PageSizes& pages, Growth& growth);
  // Pages of files need room while they pass through host memory, and no other.
  Status commit_transit(Device& device, std::uint64_t page_bytes, const tiers::PageSource& source, Growth& growth);
  // Tells a tier whose budget grows how much is needed now.
  void follow_need();
  // Creates slots ahead: for what exceeds HBM, and before anything does,
  // MoverConfig::backing_ahead_bytes. Without a value: what undeclared pages take beyond half of
  // HBM, at most another half.
  void expect_slots();
  // The same while nothing is allocated: of the pages that blocks are going to share.
  void expect_first_slots(std::uint64_t page_bytes);

 private:
  std::vector<std::uint64_t> places_below(Room below) const;
  void grow(Growth& growth, bool answered, const Memories& all, std::uint64_t needed);
  // The part of the pages that gets slots before HBM overflows.
  struct Ahead {
    double of_declared = 0, of_undeclared = 0;
  };
  Ahead ahead(std::uint64_t hbm_bytes) const;
  PageSizes page_sizes() const;
  Status commit_error(const Device& device, std::uint64_t bytes, const PageSizes& pages, const Memories& all,
                      const Shortfall& missing) const;
  std::uint64_t hbm_in_all(const Device& device) const;

  Core& core_;
  Devices& devices_;
  const NearSlots& near_;
  const Below& below_;
  NeedBelow& need_;
  Lending& lending_;
  std::unordered_map<std::uint64_t, PageCounts> counts_;  // by page size
  std::uint64_t waiting_need_ = 0;                        // the largest of calls that wait
  // What the need was computed from last, and room for what it is to be computed from.
  std::vector<std::uint64_t> followed_, now_;
};

}  // namespace vmem::migration
