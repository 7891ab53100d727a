#include "cluster/directory/home_pages.hpp"

#include <algorithm>
#include <bit>

namespace vmem::cluster::directory {

void HomePages::leave(Page& page, std::uint32_t place) {
  const auto rest = std::ranges::remove(page.coming, std::uint8_t(place));
  std::ranges::fill(rest, kNobody);
}

bool HomePages::names(std::uint32_t page, std::uint32_t place) const {
  const Page& entry = pages_[page];
  return ((entry.keepers | entry.cachers) & place_bit(place)) != 0 ||
         std::ranges::find(entry.coming, std::uint8_t(place)) != entry.coming.end();
}

std::optional<std::uint32_t> HomePages::first_lost() const {
  const auto found = std::ranges::find(pages_, HomeState::lost, &Page::state);
  return found == pages_.end() ? std::nullopt : std::optional(std::uint32_t(found - pages_.begin()));
}

void HomePages::add_keeper(std::uint32_t page, std::uint32_t place) {
  named_at_all_ |= place_bit(place);
  Page& entry = pages_[page];
  entry.keepers |= place_bit(place);
  entry.cachers &= ~place_bit(place);
  entry.state = HomeState::held;
  leave(entry, place);
}

void HomePages::add_cacher(std::uint32_t page, std::uint32_t place) {
  named_at_all_ |= place_bit(place);
  Page& entry = pages_[page];
  leave(entry, place);
  if ((entry.keepers & place_bit(place)) == 0) entry.cachers |= place_bit(place);
}

void HomePages::make_cacher(std::uint32_t page, std::uint32_t place) {
  pages_[page].keepers &= ~place_bit(place);
  add_cacher(page, place);
}

bool HomePages::remove(std::uint32_t page, std::uint32_t place) {
  Page& entry = pages_[page];
  const bool kept = (entry.keepers & place_bit(place)) != 0;
  entry.keepers &= ~place_bit(place);
  entry.cachers &= ~place_bit(place);
  leave(entry, place);
  if (entry.state == HomeState::unkept) return entry.cachers == 0;
  return kept && entry.keepers == 0 && entry.state == HomeState::held;
}

void HomePages::come(std::uint32_t page, std::uint32_t place) {
  Page& entry = pages_[page];
  if ((entry.keepers & place_bit(place)) != 0) return;
  if (std::ranges::find(entry.coming, std::uint8_t(place)) != entry.coming.end()) return;
  const auto free = std::ranges::find(entry.coming, kNobody);
  if (free == entry.coming.end()) return;
  *free = std::uint8_t(place);
  named_at_all_ |= place_bit(place);
}

std::vector<std::uint32_t> HomePages::by_load(Places places) const {
  std::vector<std::uint32_t> order;
  for (; places != 0; places &= places - 1) order.push_back(std::uint32_t(std::countr_zero(places)));
  std::ranges::stable_sort(order, {}, [this](std::uint32_t place) { return named_[place]; });
  return order;
}

std::vector<std::uint32_t> HomePages::sources(std::uint32_t page, std::uint32_t reader, Places except) {
  const Page& entry = pages_[page];
  const Places not_asked = except | (reader < kMostParticipants ? place_bit(reader) : 0);
  Places may_have = entry.cachers;
  for (const std::uint8_t coming : entry.coming) {
    if (coming == kNobody || coming == reader) break;  // those behind the reader may wait for it
    may_have |= place_bit(coming);
  }
  std::vector<std::uint32_t> chosen = by_load(may_have & ~entry.keepers & ~not_asked);
  if (chosen.size() > kMostSources - 1) chosen.resize(kMostSources - 1);
  for (const std::uint32_t keeper : by_load(entry.keepers & ~not_asked))
    if (chosen.size() < kMostSources) chosen.push_back(keeper);
  if (!chosen.empty()) ++named_[chosen.front()];
  return chosen;
}

void HomePages::join(std::uint32_t place, Places others) {
  const std::vector<std::uint32_t> order = by_load(others & ~place_bit(place));
  named_[place] = order.empty() ? 0 : named_[order.front()];
}

}  // namespace vmem::cluster::directory
