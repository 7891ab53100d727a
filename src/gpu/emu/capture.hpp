// Stream capture: work on a capturing stream becomes a node of a graph, and does not run. Other streams join by waiting for an event recorded
// on a capturing one, and must be waited for by the origin before the capture ends. Calls that could depend on
// unfinished work (queries, synchronisation, allocation) end other threads' captures, as the modes say.
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
    std::vector<Node*> last;  // whom the next node comes after
    std::uint64_t operations = 0;
    std::uint64_t joined = 0;  // of those, how many another branch waits for
  };
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  const Stream* origin = nullptr;
  std::shared_ptr<Graph> graph;
  CUgraph handle = nullptr;  // of a graph that was there before
  bool invalid = false;
  bool ended = false;
  std::map<const Stream*, Branch> branches;
};

namespace captures {

// Into a graph of the program's, or, without a handle, a new one. The first node comes after `first`.
CUresult begin(Stream& stream, CUstreamCaptureMode mode, std::shared_ptr<Graph> graph, CUgraph handle,
               std::vector<Node*> first);
CUresult end(Stream& stream, std::shared_ptr<Graph>& graph, CUgraph& handle);
CUstreamCaptureStatus status(const Stream& stream);
// Asking whether the legacy stream captures has an answer only while no blocking stream of its context does.
CUresult check_status_query(const Stream& stream);
// The stream is about to be destroyed: a capture that it takes part in is over.
void abandon(Stream& stream);

// Every operation on a stream asks first. A value: the call is over with this result (the stream captures, or is the
// legacy stream while a blocking stream of its context captures). Nothing: run it. What is captured is moved from; without work that a
// node can do the capture fails.
std::optional<CUresult> intercept_operation(Stream& stream, NodeWork* work = nullptr);
std::optional<CUresult> intercept_record(Stream& stream, Event& event);
std::optional<CUresult> intercept_wait(Stream& stream, const Record* record);

// Asked by calls that are unsafe while a capture is going on; anything but success is the call's result.
CUresult check_unsafe_call(CUstreamCaptureMode thread_mode);
// Synchronising with, or asking about, a capturing stream or an event recorded on one fails and ends the capture. So
// does the same with the legacy stream while a blocking stream captures.
CUresult check_query(Stream& stream);
CUresult check_query(const Record* record);

}  // namespace captures
}  // namespace vmem::emu
