#include "tiers/place_rates.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

namespace vmem::tiers {
namespace {

constexpr double kSmoothing = 0.125;  // share of a new transfer

}  // namespace

void PlaceRates::add(std::uint32_t place, Untried untried) { places_.try_emplace(place, Place{.untried = untried}); }

void PlaceRates::remove(std::uint32_t place) { places_.erase(place); }

PlaceRates::Begun PlaceRates::begins(std::uint32_t place, Direction direction, std::uint64_t bytes,
                                     std::uint64_t now_us) {
  const auto found = places_.find(place);
  if (found == places_.end()) return {};
  std::uint64_t& in_flight = found->second.in_flight[static_cast<std::size_t>(direction)];
  in_flight += bytes;
  return {.place = place, .direction = direction, .at_us = now_us, .bytes = bytes, .in_flight = in_flight};
}

// The place may have been removed, and added again, meanwhile.
void PlaceRates::ended(const Begun& begun, bool moved, std::uint64_t now_us) {
  const auto found = places_.find(begun.place);
  if (begun.in_flight == 0 || found == places_.end()) return;
  Place& place = found->second;
  std::uint64_t& in_flight = place.in_flight[static_cast<std::size_t>(begun.direction)];
  in_flight -= std::min(in_flight, begun.bytes);
  if (!moved) return;
  const auto took_us = static_cast<double>(std::max<std::uint64_t>(now_us - begun.at_us, 1));
  const double sample = took_us / static_cast<double>(begun.in_flight);
  double& smoothed = place.us_per_byte[static_cast<std::size_t>(begun.direction)];
  smoothed += (smoothed == 0 ? 1 : kSmoothing) * (sample - smoothed);
  place.transfers = std::min(place.transfers + 1, kMeasured);
  place.last_us = now_us;
}

// Of a direction without transfers, that of the other is taken.
double PlaceRates::Place::bytes_us() const {
  if (transfers < kMeasured) return 0;
  const double sum = us_per_byte[0] + us_per_byte[1];
  return (us_per_byte[0] == 0 || us_per_byte[1] == 0 ? 1 : 2) / sum;
}

double PlaceRates::Place::rank() const {
  if (const double rate = bytes_us(); rate != 0) return rate;
  return untried == Untried::first ? std::numeric_limits<double>::infinity() : 0;
}

bool PlaceRates::update(std::uint64_t now_us) {
  std::vector<Place*> order;
  for (auto& [id, place] : places_) {
    const bool forgotten = place.untried == Untried::first && place.level != 0 && place.transfers == kMeasured &&
                           now_us - place.last_us > kForgetUs;
    if (forgotten) place.forget();
    order.push_back(&place);
  }
  std::ranges::stable_sort(order, std::greater<>(), &Place::rank);
  bool changed = false;
  std::uint32_t level = 0;
  Place first;  // of its level, as before this
  for (Place* const place : order) {
    const Place before = *place;
    const bool was_slower = before.had_rate && first.had_rate && before.level > first.level;
    const bool next = place != order.front() && first.rank() > (was_slower ? kStillFaster : kFaster) * before.rank();
    level += next ? 1 : 0;
    if (next || place == order.front()) first = before;
    changed |= before.level != level;
    place->level = level;
    place->had_rate = before.bytes_us() != 0;
  }
  return changed;
}

std::uint32_t PlaceRates::level(std::uint32_t place) const {
  const auto found = places_.find(place);
  return found == places_.end() ? 0 : found->second.level;
}

double PlaceRates::bytes_s(std::uint32_t place) const {
  const auto found = places_.find(place);
  return found == places_.end() ? 0 : found->second.bytes_us() * 1e6;
}

}  // namespace vmem::tiers
