// Pinned host memory for copies of pages: a bounded amount at a time. A caller reserves bytes
// first, which neither waits nor allocates; buffers are created by threads that may wait for the
// driver, and are kept for the next copy.
//
// Threads: any. Creation and destruction of buffers need a current context: take, drop_spare.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "base/status.hpp"
#include "gpu/handles.hpp"

namespace vmem::runtime {

class PinnedStaging {
 public:
  PinnedStaging(gpu::DriverRef driver, std::uint64_t most_bytes);

  // At most `most_bytes` are reserved, or one page if that is more.
  bool reserve(std::uint64_t page_bytes) noexcept;
  void cancel(std::uint64_t page_bytes) noexcept;  // a reservation without a buffer
  // The buffer of a reservation. Errors: the driver's; then the reservation stays.
  Result<gpu::PinnedBuffer> take(std::uint64_t page_bytes);
  // Ends the reservation, too.
  void give_back(gpu::PinnedBuffer buffer) noexcept;
  void drop_spare() noexcept;

 private:
  gpu::PinnedBuffer spare_of(std::uint64_t page_bytes);
  gpu::PinnedBuffer superfluous();

  const gpu::DriverRef driver_;
  const std::uint64_t most_bytes_;
  std::mutex mutex_;  // guards the members below
  std::uint64_t reserved_bytes_ = 0;
  std::uint64_t spare_bytes_ = 0;
  std::vector<gpu::PinnedBuffer> spare_;
};

}  // namespace vmem::runtime
