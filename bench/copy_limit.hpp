// What the link gives to bare copies between pinned host memory and HBM: the limit of everything that streams.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "bench/bare_disk.hpp"
#include "bench/gpu.hpp"

namespace vmem::bench {

class CopyLimit {
 public:
  static Result<CopyLimit> create(const Gpu& gpu);

  // GB/s (10^9 bytes).
  Result<double> host_to_device() const;
  Result<double> both_ways() const;  // simultaneous copies in both directions, in sum
  std::string copy_name() const;     // "256 MiB pinned copies"
  // From now on the rates are those of a disk.
  void be_disk(std::unique_ptr<BareDisk> disk) { disk_ = std::move(disk); }
  const BareDisk* disk() const { return disk_.get(); }

 private:
  explicit CopyLimit(const Gpu& gpu) : gpu_(&gpu) {}
  Status queue_in() const;
  Status queue_out() const;

  const Gpu* gpu_;
  std::uint64_t bytes_ = 0;
  gpu::PinnedBuffer host_in_, host_out_;
  DeviceMemory device_in_, device_out_;
  std::unique_ptr<BareDisk> disk_;
  Stream in_, out_;
};

}  // namespace vmem::bench
