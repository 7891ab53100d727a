// Pieces of files through io_uring, with the files registered where the kernel lets us.
#pragma once

#include <memory>
#include <vector>

#include "tiers/disk/io_queue.hpp"

namespace vmem::tiers {

struct UringConfig {
  std::vector<int> files;  // open for as long as the queue lives; none: Io::file is a descriptor
  std::uint32_t depth = 64;
  // A thread of the kernel takes requests without being called, and asks the disks for what has ended where each file's disk lets itself be
  // asked. REQUIRES: files, open for direct I/O. What is refused is done without, which the log and describe() say.
  bool poll = false;
};

// Errors: UNSUPPORTED, where the kernel has no io_uring or a sandbox forbids it; DRIVER.
Result<std::unique_ptr<IoQueue>> make_uring_queue(const UringConfig& config);

}  // namespace vmem::tiers
