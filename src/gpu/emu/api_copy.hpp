// Shared by the copy calls: the checks when work is queued, and the wait for it.
#pragma once

#include <memory>
#include <vector>

#include "gpu/emu/api_entry.hpp"
#include "gpu/emu/copies.hpp"
#include "gpu/emu/graph.hpp"

namespace vmem::emu {

// The stream of calls without a stream parameter: the legacy stream; in their per-thread variants,
// the thread's own.
inline constexpr CUstream kDefaultStream = nullptr;

// What the call states about its two ends. Between `unified` addresses the driver finds out.
enum class Direction { unified, host_to_device, device_to_host, device_to_device };

// When a call returns. Copies with pageable memory are always complete on return.
enum class Timing {
  queued,
  // Once host memory has been written or read. Work on device memory alone stays in stream order.
  synchronous,
  at_once  // once everything is complete
};

inline constexpr std::size_t pitch_max = 0x7fffffff;

inline std::uint64_t as_address(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

CUresult check_transfer(const Transfer& transfer, Direction direction);
// Queues checked work as one operation, or adds it as one node to the stream's capture.
CUresult queue_copy(const std::shared_ptr<Stream>& stream, MemcpyWork work, Direction direction, Timing timing);

// Whether the program set CU_POINTER_ATTRIBUTE_SYNC_MEMOPS for this memory.
bool synchronizes(std::uint64_t address);

// Fails if a capture forbids waiting for the stream.
CUresult check_wait(Stream& stream);
// Waits, unless the stream captures.
CUresult finish(Stream& stream);

}  // namespace vmem::emu
