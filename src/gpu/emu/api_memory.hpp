// Shared by the calls that allocate memory in stream order.
#pragma once

#include "gpu/emu/api_entry.hpp"

namespace vmem::emu {

// Allocates from `heap`, for work on `stream`.
CUresult allocate_in_order(CUdeviceptr* address, std::size_t bytes, Stream* stream, Heap& heap);

}  // namespace vmem::emu
