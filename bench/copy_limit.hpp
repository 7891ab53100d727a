// What the link gives to bare copies between pinned host memory and HBM: the limit of everything that streams
// between them.
#pragma once

#include <cstdint>
#include <string>

#include "bench/gpu.hpp"
#include "bench/stream_limit.hpp"

namespace vmem::bench {

class CopyLimit final : public StreamLimit {
 public:
  static Result<CopyLimit> create(const Gpu& gpu);

  // GB/s (10^9 bytes).
  Result<double> host_to_device() const;
  Result<double> both_ways() const;  // simultaneous copies in both directions, in sum
  Result<double> rate(StreamMode mode) override;
  std::string name(StreamMode mode) const override;

 private:
  explicit CopyLimit(const Gpu& gpu) : gpu_(&gpu) {}
  Status queue_in() const;
  Status queue_out() const;

  const Gpu* gpu_;
  std::uint64_t bytes_ = 0;
  gpu::PinnedBuffer host_in_, host_out_;
  DeviceMemory device_in_, device_out_;
  Stream in_, out_;
};

}  // namespace vmem::bench
