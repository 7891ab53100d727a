// Tries codecs on a few pieces of a page to estimate ratio and speed.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "compress/codec.hpp"

namespace vmem::compress {

// Made by Chooser::plan_sample.
struct SamplePlan {
  std::uint64_t bytes = 0;
  // Determines the pieces' positions, so that pages of equal layout are sampled at different ones.
  std::uint64_t seed = 0;
  std::vector<const Codec*> codecs;  // empty: take no sample
};

struct Trial {
  const Codec* codec = nullptr;
  double fraction = 1;
  double compress_s = 0;
  double decompress_s = 0;  // 0: the sample did not shrink
};

struct Sample {
  std::uint64_t bytes = 0;
  double seconds = 0;  // total time of the sample
  std::vector<Trial> trials;
};

using ClockNs = std::function<std::uint64_t()>;  // any origin, monotonic

// Divides the page into equal parts, takes a piece from each at a pseudo-random multiple of 64
// bytes, and tries the concatenated pieces. Reads at most the plan's bytes, or the whole page if
// smaller.
// Errors: those of Codec::compress and Codec::decompress.
Result<Sample> take_sample(std::span<const std::byte> page, const SamplePlan& plan, Workspace& workspace,
                           const ClockNs& now_ns);

}  // namespace vmem::compress
