// The resident pages of one size on one device, in lists by reuse distance, each ordered by last
// use. Whatever the number of pages, the best victim is at an end of a list: the newest page (its
// next use is farthest), or the oldest, if it is so overdue that it is probably no longer used.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "migration/policy/page_state.hpp"

namespace vmem::migration {

// A page to evict. Compared by rank, then by distance: ticks until, or since, the expected use.
struct Candidate {
  enum class Rank : std::uint8_t { keep, fetched_ahead, in_use, ordinary, prefers_host };
  PageId page;
  Rank rank = Rank::keep;
  std::uint64_t distance = 0;
};

class Shelf {
 public:
  Shelf(RegionTable& regions, const ReuseClock& clock, std::uint64_t page_bytes)
      : regions_(regions), clock_(clock), page_bytes_(page_bytes) {}

  std::uint64_t page_bytes() const { return page_bytes_; }
  std::uint32_t region_count = 0;

  // Inserts the page as the newest of the list that its state selects. REQUIRES: not listed.
  void insert(PageId page);
  void remove(PageId page);
  void refresh(PageId page) { remove(page), insert(page); }

  // The best victim that is not set aside. `unknown_distance`: assumed for pages used only once.
  std::optional<Candidate> best(Ticks unknown_distance);
  void set_aside(PageId page);
  // Returns pages set aside to their lists; those offered first are first again.
  void end_round();

 private:
  // Lists 0 to kUnknown are reuse distances.
  enum List : std::uint8_t {
    kUnknown = ReuseDistance::kUnknown,
    kRecent,
    kAhead,
    kPrefersHost,
    kPrefersHbm,
    kSetAside,
    kLists
  };
  static_assert(std::uint8_t(kLists) <= PageState::kNoList);
  struct Ends {
    PageId newest, oldest;
    bool empty() const { return newest.region.value == 0; }
  };
  static constexpr unsigned kWords = (kUnknown + 64) / 64;

  std::uint8_t list_of(const PageState& page) const;
  void push_newest(std::uint8_t list, PageId page);
  void push_oldest(std::uint8_t list, PageId page);
  void unlink(PageId page);
  // Moves pages whose second chance is over to the list of their reuse distance.
  void settle();
  void put_back(PageId page);
  Ticks age(PageId page) { return clock_.age(regions_.at(page).last); }
  bool overdue(std::uint8_t list, Ticks age, Ticks unknown_distance) const;
  std::optional<Candidate> best_ordinary(Ticks unknown_distance);
  std::optional<Candidate> last_resort();

  RegionTable& regions_;
  const ReuseClock& clock_;
  const std::uint64_t page_bytes_;
  Ticks unknown_distance_ = kAgeMax;  // as of the last query
  std::array<Ends, kLists> lists_{};
  std::array<std::uint64_t, kWords> non_empty_{};  // of the distance lists
};

}  // namespace vmem::migration
