// An IoQueue on io_uring, which registers the files if the kernel permits.
#pragma once

#include <memory>
#include <vector>

#include "tiers/io/io_queue.hpp"

namespace vmem::tiers {

struct UringConfig {
  std::vector<int> files;  // open while the queue lives; empty: Io::file is a descriptor
  std::uint32_t depth = 64;
  // A kernel thread polls for requests, and polls the disks for completions if every file's disk
  // supports it. REQUIRES: files, open for direct I/O. Unsupported polling is left off; the log and
  // describe() say so.
  bool poll = false;
};

// Errors: UNSUPPORTED if the kernel has no io_uring or a sandbox forbids it; DRIVER.
Result<std::unique_ptr<IoQueue>> make_uring_queue(const UringConfig& config);

}  // namespace vmem::tiers
