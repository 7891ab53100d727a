// What the calls that copy have in common: the checks when work is queued, and when the call waits for it.
#pragma once

#include <memory>
#include <vector>

#include "gpu/emu/api_entry.hpp"
#include "gpu/emu/copies.hpp"
#include "gpu/emu/graph.hpp"

namespace vmem::emu {

// What calls without a stream work on: the legacy stream, or in their per-thread variants the thread's own.
inline constexpr CUstream kDefaultStream = nullptr;

// What the call says of its ends. Between `unified` addresses the driver finds out.
enum class Direction { unified, host_to_device, device_to_host, device_to_device };

// When a call returns. Copies with pageable memory are over then, whatever they are.
enum class Timing {
  queued,
  synchronous,  // once host memory has its bytes or has been read; what only device memory sees is left to the stream's order
  at_once  // once everything is over
};

inline constexpr std::size_t pitch_max = 0x7fffffff;

inline std::uint64_t as_address(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

CUresult check_transfer(const Transfer& transfer, Direction direction);
// Queues what was checked as one operation, or leaves it as one node in the stream's capture.
CUresult queue_copy(const std::shared_ptr<Stream>& stream, MemcpyWork work, Direction direction, Timing timing);

// Whether the program set CU_POINTER_ATTRIBUTE_SYNC_MEMOPS for this memory.
bool synchronizes(std::uint64_t address);

// No capture forbids waiting for the stream.
CUresult check_wait(Stream& stream);
// Waits, unless the stream captures.
CUresult finish(Stream& stream);

}  // namespace vmem::emu
