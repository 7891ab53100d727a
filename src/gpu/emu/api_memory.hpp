// What the calls that allocate memory in a stream's order share.
#pragma once

#include "gpu/emu/api_entry.hpp"

namespace vmem::emu {

// From the heap, for work on the stream.
CUresult allocate_in_order(CUdeviceptr* address, std::size_t bytes, Stream* stream, Heap& heap);

}  // namespace vmem::emu
