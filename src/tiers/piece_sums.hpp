// Memory for what the pieces of slots add to their fingerprints (gpu/kernels/fingerprint.hpp): 16
// bytes for 64 KiB of a slot, shared by host and GPU. It grows with the slots that have any and is
// kept until the end. The mover only.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "gpu/handles.hpp"
#include "gpu/kernels/fingerprint.hpp"

namespace vmem::tiers {

class PieceSums {
 public:
  using Sums = std::span<gpu::Fingerprint>;

  // Of a slot with so many bytes. Empty: there is no memory, and the slot's pieces cannot be told
  // apart. Errors: DEVICE_LOST. REQUIRES: a current context, also for reset.
  Result<Sums> take(const gpu::DriverRef& driver, std::uint64_t slot_bytes);
  void give_back(Sums sums);
  void reset();

 private:
  std::vector<gpu::PinnedBuffer> chunks_;
  Sums rest_;                                      // of the last chunk
  std::map<std::size_t, std::vector<Sums>> free_;  // by count
  bool failed_ = false;
};

}  // namespace vmem::tiers
