#include "migration/policy/use_history.hpp"

#include <algorithm>
#include <utility>

namespace vmem::migration {

UseHistory::Step UseHistory::add(UnitId unit) {
  if (!uses_.empty() && uses_.back().unit == unit) return Step::repeated;
  if (uses_.size() == kUsesMax) drop_oldest();
  const Position here = end();
  Events& events = events_of(unit);
  set_after(events);
  uses_.push_back({unit});
  events.uses.push_back(here);
  const auto known_as = context();
  std::optional<Position> earlier;
  if (known_as) {
    auto& last = contexts_.try_emplace(*known_as, kNever).first->second;
    if (last != kNever && last >= begin_) earlier = last;
    last = here;
  }
  if (following_ && follow(unit)) {
    strays_ = 0;
    return Step::advanced;
  }
  const bool lost = following_ && ++strays_ > kStraysMax;
  if (earlier) {
    following_ = true;
    now_ = *earlier;
    matched_ = strays_ = 0;
    trusted_ = false;
    return Step::jumped;
  }
  if (!lost) return following_ ? Step::strayed : Step::jumped;
  following_ = false;
  return Step::jumped;
}

// If the use is expected within the next kSkipMax places, moves the program's place there.
bool UseHistory::follow(UnitId unit) {
  const Position last = std::min(now_ + kSkipMax, end() - 2);  // excludes the use just added
  for (Position place = now_ + 1; place <= last; ++place) {
    if (at(place) != unit) continue;
    const Position skipped = place - now_ - 1;
    matched_ =
        skipped == 0 ? std::min(matched_ + 1, kMatchesMax) : matched_ - std::min(matched_, skipped / kSkippedForOne);
    trusted_ = matched_ >= kTrustedMatches || (trusted_ && matched_ != 0);
    now_ = place;
    return true;
  }
  return false;
}

std::optional<std::uint64_t> UseHistory::context() const {
  if (uses_.size() < kContext) return std::nullopt;
  std::uint64_t hash = 0;
  for (std::size_t i = uses_.size() - kContext; i < uses_.size(); ++i) {
    hash = (hash ^ uses_[i].unit.value) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash;
}

UseHistory::Position UseHistory::next_use(UnitId unit, Position after) const {
  return unit.value < events_.size() ? next_in(events_[unit.value].uses, after) : kNever;
}
UseHistory::Position UseHistory::next_death(UnitId unit, Position after) const {
  return unit.value < events_.size() ? next_in(events_[unit.value].deaths, after) : kNever;
}

UseHistory::Events& UseHistory::events_of(UnitId unit) {
  if (unit.value >= events_.size()) events_.resize(unit.value + 1);
  return events_[unit.value];
}

void UseHistory::add_death(UnitId unit) {
  Events& events = events_of(unit);
  if (!events.deaths.empty() && events.deaths.back() == end()) return;
  set_after(events);
  events.deaths.push_back(end());
  in_order_.push_back({end(), unit});
}

// The unit's last use is followed by the event at end(), unless one followed it already.
void UseHistory::set_after(const Events& of) {
  if (of.uses.empty()) return;
  Position& after = uses_[of.uses.back() - begin_].after;
  if (after == kNever) after = end();
}

UseHistory::Position UseHistory::next_in(const std::vector<Position>& places, Position after) {
  const auto next = std::ranges::upper_bound(places, after);
  return next == places.end() ? kNever : *next;
}

void UseHistory::forget(UnitId unit) {
  if (unit.value >= events_.size()) return;
  Events& events = events_[unit.value];
  for (const Position place : events.uses) uses_[place - begin_].unit = {};
  for (const Position at : events.deaths) {
    for (Death& death : std::ranges::equal_range(in_order_, at, {}, &Death::at)) {
      if (death.unit == unit) death.unit = {};
    }
  }
  events = {};
}

// Drops half of the record at once, so that it happens rarely.
void UseHistory::drop_oldest() {
  const Position cut = begin_ + uses_.size() / 2;
  uses_.erase(uses_.begin(), uses_.begin() + std::ptrdiff_t(cut - begin_));
  in_order_.erase(in_order_.begin(), std::ranges::lower_bound(in_order_, cut, {}, &Death::at));
  begin_ = cut;
  for (Events& each : events_) {
    for (std::vector<Position>* places : {&each.uses, &each.deaths})
      places->erase(places->begin(), std::ranges::lower_bound(*places, cut));
  }
  std::erase_if(contexts_, [&](const auto& each) { return each.second < cut; });
  if (following_ && now_ < cut) following_ = false;
}

std::uint64_t UseHistory::bytes() const {
  // Each use has an entry in uses_ and in its unit's events; there are about as many deaths.
  return uses_.size() * (sizeof(Use) + 2 * sizeof(Position)) + in_order_.size() * sizeof(Death) +
         contexts_.size() * 4 * sizeof(Position) + events_.size() * sizeof(Events);
}

}  // namespace vmem::migration
