// Memory for the bare requests of disk measurements, of the same kind as the memory they are
// compared with. In 4 KiB pages a request is many pieces, and a virtual disk took them at half its
// rate for 2 MiB pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.hpp"
#include "bench/gpu.hpp"

namespace vmem::bench {

using RequestMemory = std::shared_ptr<std::byte>;

// In large pages if the kernel has them, as PageMemory. Errors: OUT_OF_MEMORY.
Result<RequestMemory> in_large_pages(std::uint64_t bytes);
// Pinned by the driver, as slots of the runtime's host memory are. Errors: the driver's,
// OUT_OF_MEMORY.
Result<RequestMemory> as_slots(const Gpu& gpu, std::uint64_t bytes);

}  // namespace vmem::bench
