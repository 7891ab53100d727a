// Pieces of files by threads that wait for them: what is left where the kernel has no io_uring, or a container keeps it from us.
#pragma once

#include <memory>
#include <vector>

#include "tiers/disk/io_queue.hpp"
#include "tiers/disk/uring_queue.hpp"

namespace vmem::tiers {

inline constexpr std::uint32_t kQueueThreadsMax = 16;  // each has a request at the disk

std::unique_ptr<IoQueue> make_thread_queue(const UringConfig& config);

// Io_uring, or threads where it is not to be had, which the log says. Errors: DRIVER.
Result<std::unique_ptr<IoQueue>> make_io_queue(const UringConfig& config);

}  // namespace vmem::tiers
