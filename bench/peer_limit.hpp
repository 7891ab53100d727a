// Rate of bare page-sized copies over the links to other GPUs: from their HBM, and both ways at
// once. As vmem's, they go in order on one stream each way for each lender, all lenders at once.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/sizes.hpp"
#include "bench/gpu.hpp"
#include "bench/stream_limit.hpp"

namespace vmem::bench {

// The devices that lend, each once; asks a lending process which one it lends. Errors:
// INVALID_OPTION, TIMEOUT.
Result<std::vector<int>> lending_devices(const Gpu& gpu, std::span<const PeerSpec> peers);

class PeerLimit final : public StreamLimit {
 public:
  // Errors: INVALID_OPTION (no such device, or no peer access to it), DRIVER.
  static Result<PeerLimit> create(const Gpu& gpu, std::span<const int> lenders);
  Status prepare(std::uint64_t page_bytes, std::uint64_t bytes) override;
  Result<double> rate(StreamMode mode) override;
  std::string name(StreamMode mode) const override;
  std::uint64_t crossed(const Traffic& traffic, StreamMode mode) const override {
    return mode == StreamMode::read_write ? traffic.peer_in_bytes + traffic.peer_out_bytes : traffic.peer_in_bytes;
  }

 private:
  struct Lender {
    int device = 0;
    gpu::PrimaryContext context;
    DeviceMemory in, out, in_there, out_there;  // directions as seen by this device
    Stream in_stream, out_stream;
  };
  explicit PeerLimit(const Gpu& gpu) : gpu_(&gpu) {}
  Status add(int device);
  Status allow_access(const Lender& lender) const;
  Status make_buffers(Lender& lender) const;
  Status queue_in(const Lender& lender, std::uint64_t at) const;
  Status queue_out(const Lender& lender, std::uint64_t at) const;
  Status synchronize() const;

  const Gpu* gpu_;
  CUcontext here_ = nullptr;
  std::vector<Lender> lenders_;
  std::uint64_t page_bytes_ = 0;
  std::uint64_t pages_ = 0;   // of each buffer; copies cycle through it
  std::uint64_t copies_ = 1;  // each way and lender, per sample
};

}  // namespace vmem::bench
