// The order in which units were used, and the place in that record whose next uses are expected. A
// unit is what a program uses as a whole: a region, or one page of a region that blocks share.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

namespace vmem::migration {

struct UnitId {
  std::uint32_t value = 0;  // 0: none
  auto operator<=>(const UnitId&) const = default;
};

class UseHistory {
 public:
  using Position = std::uint64_t;  // counts all uses ever recorded
  static constexpr Position kNever = ~Position{0};

  enum class Step {
    repeated,  // the same unit as the last use: not recorded
    advanced,  // as expected, or a few places further on
    jumped,    // to another place, or to none: earlier expectations are void
    strayed,   // unexpected, but the place is kept for now
  };
  Step add(UnitId unit);
  void add_death(UnitId unit);  // its contents became worthless; its next use begins anew
  void forget(UnitId unit);     // it ended: its id may serve another region

  // Whether recent uses were as expected. Each use that was adds one point; four skipped uses take
  // one, because at random any unit is used again soon. Trust begins at kTrustedMatches points and
  // ends at none.
  bool trusted() const { return following_ && trusted_; }
  // The program's place in the record. REQUIRES: trusted. The uses after it, up to end(), are
  // expected.
  Position now() const { return now_; }
  Position end() const { return begin_ + uses_.size(); }
  UnitId at(Position position) const { return uses_[position - begin_].unit; }
  // What followed the use at a position: its unit's next use or death, whichever came first;
  // kNever: neither.
  Position after(Position position) const { return uses_[position - begin_].after; }
  struct Death {
    Position at;  // the next use of any unit
    UnitId unit;
  };
  const std::deque<Death>& deaths() const { return in_order_; }  // all recorded ones
  // The next expected use or death; kNever: none. A death precedes the use at its position.
  Position next_use(UnitId unit) const { return next_use(unit, now_); }
  Position next_use(UnitId unit, Position after) const;
  Position next_death(UnitId unit) const { return next_death(unit, now_); }
  Position next_death(UnitId unit, Position after) const;
  std::uint64_t bytes() const;

 private:
  static constexpr std::size_t kContext = 6;      // uses that identify a place
  static constexpr std::uint32_t kStraysMax = 8;  // in a row
  static constexpr Position kSkipMax = 64;        // expected uses that may be skipped
  // With kMatchesMax points even the longest skip leaves enough of them.
  static constexpr Position kSkippedForOne = 4;
  static constexpr Position kTrustedMatches = 12, kMatchesMax = kTrustedMatches + kSkipMax / kSkippedForOne;
  static constexpr std::size_t kUsesMax = std::size_t{1} << 19;

  std::optional<std::uint64_t> context() const;
  bool follow(UnitId unit);
  void drop_oldest();

  struct Events {  // of a unit, ascending
    std::vector<Position> uses, deaths;
  };
  Events& events_of(UnitId unit);
  void set_after(const Events& of);
  static Position next_in(const std::vector<Position>& places, Position after);

  struct Use {
    UnitId unit;
    Position after = kNever;
  };
  std::vector<Use> uses_;
  std::deque<Death> in_order_;
  Position begin_ = 0;                                    // of uses_.front()
  std::vector<Events> events_;                            // by unit: ids are small
  std::unordered_map<std::uint64_t, Position> contexts_;  // the last place where a context ended
  bool following_ = false;
  Position now_ = 0;
  Position matched_ = 0;
  bool trusted_ = false;
  std::uint32_t strays_ = 0;
};

}  // namespace vmem::migration
