// Memory for what the pieces of slots add to their fingerprints (gpu/kernels/fingerprint.hpp): 16
// bytes for 64 KiB of a slot, shared by host and GPU. The mover only.
#pragma once

#include <cstddef>
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

  // For slots of so many bytes in all. Errors: the driver's. REQUIRES: a current context, also for
  // reset.
  Status create(const gpu::DriverRef& driver, std::uint64_t slots_bytes);
  void reset();
  // Of a slot with so many bytes. Empty: all are taken, or in lots that are too small, since what
  // was given back is split and never joined.
  Sums take(std::uint64_t slot_bytes);
  void give_back(Sums sums);

 private:
  gpu::PinnedBuffer memory_;
  Sums rest_;                                      // not given out yet
  std::map<std::size_t, std::vector<Sums>> free_;  // given back, by count
};

}  // namespace vmem::tiers
