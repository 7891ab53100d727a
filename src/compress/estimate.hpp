// What codecs do with a region's pages, as far as it is known: taken from samples and from the pages themselves, the last ones
// counting most.
#pragma once

#include <algorithm>

#include "compress/codec.hpp"

namespace vmem::compress {

// Of one worker, in bytes of pages as they are before compression.
struct Rates {
  double compress_bytes_s = 0;
  double decompress_bytes_s = 0;
};

// A codec that may be chosen, and what it does elsewhere: what is assumed until it has been tried.
struct Candidate {
  const Codec* codec = nullptr;
  Rates elsewhere;
};

// Averages exponentially; the first value counts alone.
class Average {
 public:
  explicit Average(double assumed) : value_(assumed) {}
  void observe(double value) {
    value_ = known_ ? value_ + kWeight * (value - value_) : value;
    known_ = true;
  }
  double value() const { return value_; }
  bool known() const { return known_; }

 private:
  static constexpr double kWeight = 0.25;
  double value_;
  bool known_ = false;
};

struct Estimate {
  // How much longer a byte takes in a sample than in a page, until that is known: a sample finds caches and tables cold, a page only at its
  // beginning. Measured of samples of 32 to 128 KiB: 1 to 2.5 (EPYC, caches swept before).
  static constexpr double kColdStart = 1.6;

  explicit Estimate(const Candidate& candidate)
      : codec(candidate.codec),
        elsewhere(candidate.elsewhere),
        compress_s_per_byte(1 / candidate.elsewhere.compress_bytes_s),
        decompress_s_per_byte(1 / candidate.elsewhere.decompress_bytes_s) {}

  // Reads keep the sample's slow figure: a wrong guess of the way there is put right by the first page, one of the way back only when
  // many pages are stored. `decompress_s` 0: it did not shrink.
  void observe_sample(double shrunk_to, double compress_s, double decompress_s) {
    fraction.observe(shrunk_to);
    sampled_s_per_byte.observe(compress_s);
    compress_s_per_byte.observe(compress_s / cold_start.value());
    if (decompress_s > 0) decompress_s_per_byte.observe(decompress_s);
  }
  void observe_page(double shrunk_to, double compress_s) {
    fraction.observe(shrunk_to);
    compress_s_per_byte.observe(compress_s);
    if (sampled_s_per_byte.known() && compress_s > 0) {
      cold_start.observe(std::clamp(sampled_s_per_byte.value() / compress_s, 1.0, 3.0));
    }
  }

  const Codec* codec;
  Rates elsewhere;
  Average fraction{1};  // stored bytes over page bytes
  // Seconds are averaged, not rates: pages of 1 and 3 GB/s in turn make 1.5, not 2.
  Average compress_s_per_byte;
  Average decompress_s_per_byte;
  Average sampled_s_per_byte{0};  // compressing, as samples found it
  Average cold_start{kColdStart};
};

}  // namespace vmem::compress
