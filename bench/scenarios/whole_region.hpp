// Single launches over a region larger than HBM, against the same kernel reading in place, from
// pinned host memory, as much as lies outside HBM: what is in HBM crosses no link.
#pragma once

#include <functional>
#include <string>

#include "bench/context.hpp"
#include "bench/pattern.hpp"
#include "bench/runtime.hpp"
#include "bench/samples.hpp"

namespace vmem::bench {

// One kernel, over the first `bytes` of the pattern.
struct WholeKernel {
  // Queues one launch that adds its checksum to `sum`.
  std::function<Status(const std::uint64_t* words, std::uint64_t bytes, CUstream stream, std::uint64_t* sum)> launch;
  std::function<std::uint64_t(std::uint64_t bytes)> read_bytes;  // by such a launch
  std::function<std::uint64_t(std::uint64_t bytes)> expected;    // its checksum
};

struct WholeRead {
  Measured rates;     // GB/s over the link
  Samples processed;  // GB/s that the kernel read
  Traffic traffic;
  double resident_share = 0;  // of the region, in HBM
  std::string mismatch;
};

class WholeRegion {
 public:
  // Starts the runtime, then fills a region and as much pinned memory with the same pattern.
  static Result<WholeRegion> create(Context& context, const Sizes& sizes);

  // Errors: INVALID_OPTION if the region lies in HBM altogether.
  Result<WholeRead> measure(const WholeKernel& kernel);
  // A row of that; the caller sets the names and the goal.
  Record record(const Sizes& sizes, std::string variant, const WholeRead& read) const;
  std::uint64_t bytes() const { return region_.bytes(); }

 private:
  WholeRegion(Context& context, gpu::PinnedBuffer pinned, Session session, Stream stream, Region region,
              ResultWords sum);
  Result<double> time_in_place(const WholeKernel& kernel, std::uint64_t bytes, std::uint64_t expected);
  Result<double> time_region(const WholeKernel& kernel, std::uint64_t& found);
  Result<std::uint64_t> bytes_outside_hbm() const;

  Context* context_;
  gpu::PinnedBuffer pinned_;
  Session session_;
  Stream stream_;
  Region region_;
  ResultWords sum_;
};

}  // namespace vmem::bench
