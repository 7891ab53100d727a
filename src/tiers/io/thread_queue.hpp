// An IoQueue on threads with blocking I/O: the fallback where the kernel has no io_uring or a
// container forbids it.
#pragma once

#include <memory>
#include <vector>

#include "tiers/io/io_queue.hpp"
#include "tiers/io/uring_queue.hpp"

namespace vmem::tiers {

inline constexpr std::uint32_t kQueueThreadsMax = 16;  // each has one request in flight

std::unique_ptr<IoQueue> make_thread_queue(const UringConfig& config);

// io_uring, or threads if it is unavailable, which is logged. Errors: DRIVER.
Result<std::unique_ptr<IoQueue>> make_io_queue(const UringConfig& config);

}  // namespace vmem::tiers
