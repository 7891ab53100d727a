// Pieces of files through io_uring, with the files registered.
#pragma once

#include <memory>
#include <vector>

#include "tiers/disk/io_queue.hpp"

namespace vmem::tiers {

struct UringConfig {
  std::vector<int> files;  // open for as long as the queue lives; none: Io::file is a descriptor
  std::uint32_t depth = 64;
};

// Errors: UNSUPPORTED, where the kernel has no io_uring or a sandbox forbids it; DRIVER.
Result<std::unique_ptr<IoQueue>> make_uring_queue(const UringConfig& config);

}  // namespace vmem::tiers
