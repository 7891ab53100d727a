// The record of which regions were used, in order, and where in it the program is now: the place whose next uses are expected next.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>

#include "pagetable/types.hpp"

namespace vmem::migration {

using pagetable::RegionId;

class UseHistory {
 public:
  using Position = std::uint64_t;  // counts all uses ever recorded
  static constexpr Position kNever = ~Position{0};

  enum class Step {
    repeated,  // of the same region as the last one: not recorded
    advanced,  // as expected, or a few places further on
    moved,     // to another place, or to none: all that was expected before is void
    strayed,   // not as expected, but not enough to give the place up
  };
  Step add(RegionId region);
  void add_death(RegionId region);  // what it held is of no use any more; its next use begins anew
  void forget(RegionId region);     // it ended: its id may serve another region

  // Whether the last uses were as expected for long enough to trust what comes next.
  bool trusted() const { return following_ && matched_ >= kTrustedMatches; }
  // Where the program is. REQUIRES: trusted. What follows is expected, up to end().
  Position now() const { return now_; }
  Position end() const { return begin_ + uses_.size(); }
  RegionId at(Position position) const { return uses_[position - begin_]; }
  // What came after the use at a position: the next use of its region, or its death if that came first; kNever if neither did.
  Position after(Position position) const { return after_[position - begin_]; }
  struct Death {
    Position at;  // of the next use of any region
    RegionId region;
  };
  const std::deque<Death>& deaths() const { return in_order_; }  // all on record
  // The next expected use, and the next expected death, or kNever. A death comes before the use at its position.
  Position next_use(RegionId region) const;
  Position next_death(RegionId region) const;
  std::uint64_t bytes() const;

 private:
  static constexpr std::size_t kContext = 6;  // uses that identify a place
  static constexpr std::uint32_t kTrustedMatches = 12;
  static constexpr std::uint32_t kStraysMax = 8;  // in a row
  static constexpr Position kSkipMax = 64;        // expected uses that may be left out
  static constexpr std::size_t kUsesMax = std::size_t{1} << 19;

  std::optional<std::uint64_t> context() const;
  bool follow(RegionId region);
  void drop_oldest();

  void set_after(RegionId region);

  std::deque<RegionId> uses_;
  std::deque<Position> after_;  // as many
  std::deque<Death> in_order_;
  Position begin_ = 0;                                                     // of uses_.front()
  using Places = std::unordered_map<std::uint32_t, std::deque<Position>>;  // of each region, ascending
  Position next_in(const Places& places, RegionId region) const;
  Places places_, deaths_;
  std::unordered_map<std::uint64_t, Position> contexts_;  // the last place where a context ended
  bool following_ = false;
  Position now_ = 0;
  std::uint32_t matched_ = 0;
  std::uint32_t strays_ = 0;
};

}  // namespace vmem::migration
