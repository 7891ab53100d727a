// What places for pages deliver, measured from their transfers, and which are faster.
//
// A transfer's rate is what was in flight to its place when it began, itself included, divided by
// the time that it took: a place that moves several pages at once is not slow. The rate of a place
// is that of a page that is stored and loaded once, smoothed over transfers.
//
// Places have levels, 0 for the fastest. Places of one level are alike: a place goes before another
// once it is kFaster times as fast, and stays there until it is less than kStillFaster times as
// fast. So neither noise nor load that comes and goes makes the order flap.
//
// Pure: the clock is the caller's. Times are microseconds. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "tiers/tier.hpp"

namespace vmem::tiers {

class PlaceRates {
 public:
  static constexpr double kFaster = 2, kStillFaster = 1.5;
  static constexpr std::uint32_t kMeasured = 16;          // transfers until a rate counts
  static constexpr std::uint64_t kForgetUs = 30'000'000;  // see Untried::first

  // Where a place without a rate stands. first: before all others, so that it is tried; again, once
  // it is slower than others and was not used for kForgetUs. last: behind all others.
  enum class Untried : std::uint8_t { first, last };
  void add(std::uint32_t place, Untried untried);  // no effect if it is known
  void remove(std::uint32_t place);

  struct Begun {
    std::uint32_t place = 0;
    Direction direction{};
    std::uint64_t at_us = 0, bytes = 0;
    std::uint64_t in_flight = 0;  // bytes, with its own; 0: of no known place
  };
  Begun begins(std::uint32_t place, Direction direction, std::uint64_t bytes, std::uint64_t now_us);
  // `moved`: all bytes were transferred. Else it says nothing about the place.
  void ended(const Begun& begun, bool moved, std::uint64_t now_us);

  // Puts the places in order anew; true: a level has changed.
  bool update(std::uint64_t now_us);
  std::uint32_t level(std::uint32_t place) const;  // as of the last update()
  double bytes_s(std::uint32_t place) const;       // 0: not measured yet
  bool is_measured(std::uint32_t place) const { return bytes_s(place) != 0; }

 private:
  struct Place {
    Untried untried{};
    std::array<std::uint64_t, 2> in_flight{};  // bytes, by direction
    std::array<double, 2> us_per_byte{};       // smoothed; 0: no transfer yet
    std::uint32_t transfers = 0;               // that were measured, up to kMeasured
    std::uint64_t last_us = 0;                 // the end of the last of them
    std::uint32_t level = 0;
    bool had_rate = false;  // when the level was set

    void forget() {
      us_per_byte = {};
      transfers = 0;
    }
    double bytes_us() const;
    double rank() const;
  };

  std::map<std::uint32_t, Place> places_;
};

}  // namespace vmem::tiers
