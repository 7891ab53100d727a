// Estimates of codecs' ratios and rates for a region's pages, from samples and from pages; recent
// ones weigh most.
#pragma once

#include <algorithm>

#include "compress/codec.hpp"

namespace vmem::compress {

// Of one worker, in bytes before compression.
struct Rates {
  double compress_bytes_s = 0;
  double decompress_bytes_s = 0;
};

// A codec that may be chosen, and its rates on other data, assumed until it has been tried.
struct Candidate {
  const Codec* codec = nullptr;
  Rates elsewhere;
};

// An exponential average; the first observation replaces the assumed value.
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
  // Assumed ratio of the time per byte in a sample to that in a page: a sample runs with cold
  // caches and tables, a page only at its beginning. Measured with samples of 32 to 128 KiB: 1 to
  // 2.5 (EPYC, caches swept before).
  static constexpr double kColdStart = 1.6;

  explicit Estimate(const Candidate& candidate)
      : codec(candidate.codec),
        elsewhere(candidate.elsewhere),
        compress_s_per_byte(1 / candidate.elsewhere.compress_bytes_s),
        decompress_s_per_byte(1 / candidate.elsewhere.decompress_bytes_s) {}

  // Seconds per byte. Decompression keeps the sample's slower value: the first page corrects a
  // wrong write estimate, but a wrong read estimate stays until many pages are stored.
  // `decompress_s` 0: the sample did not shrink.
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
  // Averages of seconds, not rates: alternating pages of 1 and 3 GB/s make 1.5 GB/s, not 2.
  Average compress_s_per_byte;
  Average decompress_s_per_byte;
  Average sampled_s_per_byte{0};  // compression, in samples
  Average cold_start{kColdStart};
};

}  // namespace vmem::compress
