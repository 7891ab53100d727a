// Rate of bare copies between pinned host memory and HBM: the limit for streaming between them.
// Copies have the size of vmem's pages and go, as vmem's do, in order on one stream each way.
#pragma once

#include <cstdint>
#include <string>

#include "bench/gpu.hpp"
#include "bench/stream_limit.hpp"

namespace vmem::bench {

class CopyLimit final : public StreamLimit {
 public:
  static Result<CopyLimit> create(const Gpu& gpu);

  Status prepare(std::uint64_t page_bytes, std::uint64_t bytes) override;
  Result<double> rate(StreamMode mode) override;
  std::string name(StreamMode mode) const override;
  std::uint64_t crossed(const Traffic& traffic, StreamMode mode) const override;

 private:
  explicit CopyLimit(const Gpu& gpu) : gpu_(&gpu) {}
  Status queue_in(std::uint64_t copy) const;
  Status queue_out(std::uint64_t copy) const;

  const Gpu* gpu_;
  std::uint64_t bytes_ = 0;       // of each buffer; copies cycle through it
  std::uint64_t page_bytes_ = 0;  // of a copy
  std::uint64_t copies_ = 1;      // each way, per sample
  gpu::PinnedBuffer host_in_, host_out_;
  DeviceMemory device_in_, device_out_;
  Stream in_, out_;
};

}  // namespace vmem::bench
