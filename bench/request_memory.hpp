// Memory for the bare requests that a disk is measured with. Of the same kind as that which they are compared with: in 4 KiB pages a
// request is many pieces to a disk, and a virtual one took them at half the rate that it has for 2 MiB pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.hpp"
#include "bench/gpu.hpp"

namespace vmem::bench {

using RequestMemory = std::shared_ptr<std::byte>;

// In large pages where the kernel has them, as PageMemory. Errors: OUT_OF_MEMORY.
Result<RequestMemory> in_large_pages(std::uint64_t bytes);
// The driver's, pinned, as slots of the runtime's host memory are. Errors: the driver's, OUT_OF_MEMORY.
Result<RequestMemory> as_slots(const Gpu& gpu, std::uint64_t bytes);

}  // namespace vmem::bench
