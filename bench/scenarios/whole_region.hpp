// Single launches over a region larger than HBM, against the same kernel reading everything in place from pinned host memory.
#pragma once

#include <functional>
#include <string>

#include "bench/context.hpp"
#include "bench/pattern.hpp"
#include "bench/runtime.hpp"
#include "bench/samples.hpp"

namespace vmem::bench {

struct WholeRead {
  Measured rates;  // GB/s
  Traffic traffic;
  std::string mismatch;
};

class WholeRegion {
 public:
  // Starts the runtime, fills a region and as much pinned memory with the same pattern.
  static Result<WholeRegion> create(Context& context, const Sizes& sizes);

  // Queues one launch that reads from `words` and adds its checksum to `sum`.
  using Launch = std::function<Status(const std::uint64_t* words, CUstream stream, std::uint64_t* sum)>;
  // `bytes` are read by one launch, whose checksum must be `expected`.
  Result<WholeRead> measure(const Launch& launch, std::uint64_t bytes, std::uint64_t expected);
  std::uint64_t bytes() const { return region_.bytes(); }
  std::uint64_t page_bytes() const { return region_.page_bytes(); }
  // The share of the region that is in HBM now.
  Result<double> resident_share() const;

 private:
  WholeRegion(Context& context, gpu::PinnedBuffer pinned, Session session, Stream stream, Region region,
              ResultWords sum);
  Result<double> time_in_place(const Launch& launch, std::uint64_t bytes, std::uint64_t expected);
  Result<double> time_region(const Launch& launch, std::uint64_t bytes, std::uint64_t& found);

  Context* context_;
  gpu::PinnedBuffer pinned_;
  Session session_;
  Stream stream_;
  Region region_;
  ResultWords sum_;
};

}  // namespace vmem::bench
