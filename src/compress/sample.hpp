// Codecs tried on a few pieces of a page: how far it would shrink, and how fast.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "compress/codec.hpp"

namespace vmem::compress {

// What to try; made by Chooser::plan_sample.
struct SamplePlan {
  std::uint64_t bytes = 0;
  std::uint64_t seed = 0;  // says where the pieces are, so that pages of equal layout are not sampled at equal places
  std::vector<const Codec*> codecs;  // none: no sample is wanted
};

struct Trial {
  const Codec* codec = nullptr;
  double fraction = 1;
  double compress_s = 0;
  double decompress_s = 0;  // 0: it did not shrink, so there was nothing to decompress
};

struct Sample {
  std::uint64_t bytes = 0;
  double seconds = 0;  // that the sample took, all in all
  std::vector<Trial> trials;
};

using ClockNs = std::function<std::uint64_t()>;  // any start, does not go back

// The pieces lie in as many equal parts of the page, somewhere in each, at multiples of 64 bytes, and are tried as one. Reads no more
// of the page than the plan's bytes; a page that is smaller is taken whole.
// Errors: those of Codec::compress.
Result<Sample> take_sample(std::span<const std::byte> page, const SamplePlan& plan, Workspace& workspace,
                           const ClockNs& now_ns);

}  // namespace vmem::compress
