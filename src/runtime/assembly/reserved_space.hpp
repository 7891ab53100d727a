// The reservation of addresses that the page table maps pages into.
#pragma once

#include <memory>

#include "base/status.hpp"
#include "gpu/driver.hpp"
#include "pagetable/address_space.hpp"
#include "runtime/options/options.hpp"

namespace vmem::runtime {

class ReservedSpace {
 public:
  // At the option base, or, without a cluster, elsewhere if something else is there. In a cluster
  // nothing is this node's own at first. Errors: ADDRESS_SPACE.
  static Result<std::unique_ptr<ReservedSpace>> reserve(const std::shared_ptr<const gpu::Driver>& driver,
                                                        const Options& options);
  // REQUIRES: nothing is mapped.
  ~ReservedSpace();
  ReservedSpace(const ReservedSpace&) = delete;
  ReservedSpace& operator=(const ReservedSpace&) = delete;

  pagetable::AddressSpace& space() { return *space_; }
  // Unmaps the pages that the mover left mapped, as after a device loss. Otherwise their frames
  // would stay allocated, and the reservation could not be freed. REQUIRES: the mover has stopped.
  void unmap_pages();

 private:
  explicit ReservedSpace(std::shared_ptr<const gpu::Driver> driver) : driver_(std::move(driver)) {}

  const std::shared_ptr<const gpu::Driver> driver_;
  CUdeviceptr base_ = 0;
  std::uint64_t bytes_ = 0;  // 0: nothing is reserved
  std::unique_ptr<pagetable::AddressSpace> space_;
};

}  // namespace vmem::runtime
