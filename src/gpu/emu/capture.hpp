// Stream capture: work on a capturing stream becomes a graph node and does not run. Another stream
// joins by waiting for an event recorded on a capturing stream; the origin must wait for it before
// the capture ends. Calls that could depend on unfinished work (queries, synchronisation,
// allocation) invalidate captures, as the capture modes say.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "gpu/emu/cuda_api.hpp"
#include "gpu/emu/event.hpp"
#include "gpu/emu/graph.hpp"
#include "gpu/emu/stream.hpp"

namespace vmem::emu {

struct Capture {
  struct Branch {
    std::shared_ptr<Stream> stream;
    std::vector<Node*> last;  // predecessors of the next node
    std::uint64_t operations = 0;
    std::uint64_t joined = 0;  // how many of them another branch waits for
  };
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  const Stream* origin = nullptr;
  std::shared_ptr<Graph> graph;
  CUgraph handle = nullptr;  // of an existing graph; null: a new one
  bool invalid = false;
  bool ended = false;
  std::map<const Stream*, Branch> branches;
};

namespace captures {

// Captures into the program's graph `handle`, or into a new graph if `handle` is null. The first
// node depends on `first`.
CUresult begin(Stream& stream, CUstreamCaptureMode mode, std::shared_ptr<Graph> graph, CUgraph handle,
               std::vector<Node*> first);
CUresult end(Stream& stream, std::shared_ptr<Graph>& graph, CUgraph& handle);
CUstreamCaptureStatus status(const Stream& stream);
// Fails for the legacy stream while a blocking stream of its context captures.
CUresult check_status_query(const Stream& stream);
// Call before the stream is destroyed: invalidates the capture that includes it.
void abandon(Stream& stream);

// Every operation on a stream calls one of these first. A value is the call's result: the stream
// captures, or it is the legacy stream while a blocking stream of its context captures. Nothing:
// run the operation.
// A captured `work` is moved from. Without `work` the capture fails.
std::optional<CUresult> intercept_operation(Stream& stream, NodeWork* work = nullptr);
std::optional<CUresult> intercept_record(Stream& stream, Event& event);
std::optional<CUresult> intercept_wait(Stream& stream, const Record* record);

// For calls that are unsafe during a capture. Any result but success is the call's result.
CUresult check_unsafe_call(CUstreamCaptureMode thread_mode);
// Synchronising with or querying a capturing stream, or an event recorded on one, fails and
// invalidates the capture. The same holds for the legacy stream while a blocking stream captures.
CUresult check_query(Stream& stream);
CUresult check_query(const Record* record);

}  // namespace captures
}  // namespace vmem::emu
