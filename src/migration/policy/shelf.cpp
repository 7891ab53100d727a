#include "migration/policy/shelf.hpp"

namespace vmem::migration {

void Shelf::insert(PageId page) {
  push_newest(list_of(regions_.at(page)), page);
  settle();
}

void Shelf::remove(PageId page) { unlink(page); }

std::uint8_t Shelf::list_of(const PageState& page) const {
  const Preference preference{std::uint8_t(page.preference)};
  if (preference == Preference::prefer_host || preference == Preference::in_place) return kPrefersHost;
  if (preference == Preference::prefer_hbm) return kPrefersHbm;
  if (page.ahead) return kAhead;
  if (clock_.age(page.last) < clock_.window()) return kRecent;
  return page.distance();
}

void Shelf::push_newest(std::uint8_t list, PageId page) {
  PageState& state = regions_.at(page);
  Ends& ends = lists_[list];
  state.list = list;
  state.newer = {};
  state.older = ends.newest;
  (ends.empty() ? ends.oldest : regions_.at(ends.newest).newer) = page;
  ends.newest = page;
  if (list <= kUnknown) non_empty_[list / 64] |= std::uint64_t{1} << list % 64;
}

void Shelf::push_oldest(std::uint8_t list, PageId page) {
  if (lists_[list].empty()) return push_newest(list, page);
  PageState& state = regions_.at(page);
  Ends& ends = lists_[list];
  state.list = list;
  state.older = {};
  state.newer = ends.oldest;
  regions_.at(ends.oldest).older = page;
  ends.oldest = page;
}

void Shelf::unlink(PageId page) {
  PageState& state = regions_.at(page);
  Ends& ends = lists_[state.list];
  (state.newer.region.value ? regions_.at(state.newer).older : ends.newest) = state.older;
  (state.older.region.value ? regions_.at(state.older).newer : ends.oldest) = state.newer;
  if (ends.empty() && state.list <= kUnknown) non_empty_[state.list / 64] &= ~(std::uint64_t{1} << (state.list % 64));
  state.newer = state.older = {};
  state.list = PageState::kNoList;
}

void Shelf::settle() {
  const Ticks window = clock_.window();
  while (!lists_[kRecent].empty() && age(lists_[kRecent].oldest) >= window) {
    const PageId page = lists_[kRecent].oldest;
    unlink(page);
    push_newest(regions_.at(page).distance(), page);
  }
}

// Overdue means half again beyond the list's farthest distance: periods vary a little, and the
// oldest page of a regular scan, taken for overdue, would be the very next one needed.
bool Shelf::overdue(std::uint8_t list, Ticks age, Ticks unknown_distance) const {
  if (list == kUnknown) return age > unknown_distance;
  if (list == kAhead) return age > clock_.budget() / 2;
  const std::uint64_t expected = ReuseDistance::end(list);
  return age > expected + expected / 2 && age > clock_.burst_limit();
}

std::optional<Candidate> Shelf::best_ordinary(Ticks unknown_distance) {
  std::optional<Candidate> best;
  const auto consider = [&](PageId page, std::uint64_t distance) {
    if (!best || distance > best->distance) best = Candidate{page, Candidate::Rank::ordinary, distance};
  };
  for (unsigned word = 0; word < kWords; ++word) {
    for (std::uint64_t bits = non_empty_[word]; bits; bits &= bits - 1) {
      const auto list = std::uint8_t(word * 64 + unsigned(std::countr_zero(bits)));
      const Ticks oldest_age = age(lists_[list].oldest);
      if (overdue(list, oldest_age, unknown_distance)) {
        consider(lists_[list].oldest, oldest_age);
      } else {
        consider(lists_[list].newest, list == kUnknown ? unknown_distance : ReuseDistance::end(list));
      }
    }
  }
  if (const Ends& ahead = lists_[kAhead]; !ahead.empty() && overdue(kAhead, age(ahead.oldest), unknown_distance))
    consider(ahead.oldest, age(ahead.oldest));
  return best;
}

std::optional<Candidate> Shelf::last_resort() {
  using Rank = Candidate::Rank;
  if (const Ends& ends = lists_[kRecent]; !ends.empty()) return Candidate{ends.oldest, Rank::in_use, age(ends.oldest)};
  // The soonest needed pages are fetched first, so the newest is needed last.
  if (const Ends& ends = lists_[kAhead]; !ends.empty()) return Candidate{ends.newest, Rank::fetched_ahead, 0};
  if (const Ends& ends = lists_[kPrefersHbm]; !ends.empty())
    return Candidate{ends.oldest, Rank::keep, age(ends.oldest)};
  return std::nullopt;
}

std::optional<Candidate> Shelf::best(Ticks unknown_distance) {
  settle();
  unknown_distance_ = unknown_distance;
  if (const Ends& ends = lists_[kPrefersHost]; !ends.empty())
    return Candidate{ends.oldest, Candidate::Rank::prefers_host, age(ends.oldest)};
  if (const auto candidate = best_ordinary(unknown_distance)) return candidate;
  return last_resort();
}

void Shelf::set_aside(PageId page) {
  unlink(page);
  push_newest(kSetAside, page);
}

void Shelf::end_round() {
  while (!lists_[kSetAside].empty()) {
    const PageId page = lists_[kSetAside].newest;
    unlink(page);
    put_back(page);
  }
}

// To the end of the list where victims are taken.
void Shelf::put_back(PageId page) {
  const std::uint8_t list = list_of(regions_.at(page));
  const bool from_oldest = list == kPrefersHost || list == kPrefersHbm || list == kRecent;
  if (from_oldest || overdue(list, age(page), unknown_distance_)) {
    push_oldest(list, page);
  } else {
    push_newest(list, page);
  }
}

}  // namespace vmem::migration
