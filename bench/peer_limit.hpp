// What the link to another GPU gives to bare copies of a page's size, one behind the other: from its HBM, and both ways at once.
#pragma once

#include "bench/gpu.hpp"
#include "bench/stream_limit.hpp"

namespace vmem::bench {

class PeerLimit final : public StreamLimit {
 public:
  // Errors: INVALID_OPTION (no such device, or no peer access to it), DRIVER.
  static Result<PeerLimit> create(const Gpu& gpu, int peer);
  Status prepare(std::uint64_t page_bytes) override;
  Result<double> rate(StreamMode mode) override;
  std::string name(StreamMode mode) const override;

 private:
  PeerLimit(const Gpu& gpu, int peer) : gpu_(&gpu), peer_(peer) {}
  Status allow_access();
  Status queue(const Stream& stream, bool in, std::uint64_t copy) const;

  const Gpu* gpu_;
  int peer_;
  CUcontext here_ = nullptr;
  gpu::PrimaryContext there_;
  std::uint64_t page_bytes_ = 0;
  std::uint64_t pages_ = 0;                       // of each of the four
  DeviceMemory in_, out_, in_there_, out_there_;  // in and out as this device sees it
  Stream in_stream_, out_stream_;
};

}  // namespace vmem::bench
