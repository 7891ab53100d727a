// The time of a policy: bytes used on one device, in ticks of about 1/4096 of its budget. Distances
// between uses of a page take one byte, four steps per octave, so that a page costs little memory
// and small jitter does not reorder pages.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace vmem::migration {

// Wraps. Ages stay below kAgeMax because old stamps are moved forward (SecondChance::sweep).
using Ticks = std::uint32_t;

inline constexpr Ticks kAgeMax = Ticks{1} << 30;

// A reuse distance in quarter octaves, in seven bits.
class ReuseDistance {
 public:
  static constexpr std::uint8_t kMax = 120;      // kAgeMax and more
  static constexpr std::uint8_t kUnknown = 121;  // the page was used at most once

  static constexpr std::uint8_t encode(Ticks distance) {
    if (distance < 4) return std::uint8_t(distance);
    const unsigned octave = unsigned(std::bit_width(distance)) - 1;
    return std::uint8_t(std::min(octave * 4 + (distance >> (octave - 2) & 3), unsigned{kMax}));
  }
  // The least distance with a larger code.
  static constexpr std::uint64_t end(std::uint8_t code) {
    if (code < 8) return std::uint64_t{code} + 1;
    return (std::uint64_t{code} % 4 + 5) << (code / 4 - 2);
  }
  static constexpr bool alike(std::uint8_t a, std::uint8_t b) { return a <= b ? b - a <= 2 : a - b <= 2; }
};

class ReuseClock {
 public:
  explicit ReuseClock(std::uint64_t budget_bytes);

  void advance(std::uint64_t bytes) { bytes_ += bytes; }
  Ticks now() const { return Ticks(bytes_ >> shift_); }
  Ticks age(Ticks last) const { return now() - last; }
  Ticks budget() const { return budget_; }
  std::uint64_t budget_bytes() const { return budget_bytes_; }
  Ticks ticks(std::uint64_t bytes) const { return Ticks(std::min<std::uint64_t>(bytes >> shift_, kAgeMax)); }

  // Uses closer than this may be one: a scan can use a page several times before it advances.
  Ticks burst_limit() const { return budget_ / 8; }
  // A page not known to be hot was used again after `distance`.
  void note_repeat(Ticks distance);
  // How long to keep a page after a use, in case it is used again: based on recent repeats; 0
  // without any.
  Ticks window() const;

 private:
  std::uint64_t budget_bytes_;
  unsigned shift_;
  Ticks budget_;
  std::uint64_t bytes_;
  // The largest repeat in this and in the previous stretch (two budgets long).
  Ticks stretch_begin_ = 0;
  Ticks largest_ = 0;
  Ticks previous_largest_ = 0;
};

}  // namespace vmem::migration
