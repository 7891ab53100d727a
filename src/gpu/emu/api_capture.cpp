// Stream capture.
#include <utility>

#include "gpu/emu/api_entry.hpp"

using namespace vmem::emu;

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) try {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  VMEM_EMU_TRY(captures::check_status_query(*stream));
  *status = captures::status(*stream);
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) try {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  if (stream->legacy()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return captures::begin(*stream, mode, std::make_shared<Graph>(), nullptr, {});
}
VMEM_EMU_CATCH

CUresult cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph_handle, const CUgraphNode* dependencies,
                                     const CUgraphEdgeData* edges, std::size_t count, CUstreamCaptureMode mode) try {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  if (stream->legacy()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  auto graph = machine().graphs.find(graph_handle);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Node*> first;
  VMEM_EMU_TRY(find_nodes(*graph, dependencies, edges, count, first));
  return captures::begin(*stream, mode, std::move(graph), graph_handle, std::move(first));
}
VMEM_EMU_CATCH

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph_handle) try {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  if (!graph_handle) return CUDA_ERROR_INVALID_VALUE;
  *graph_handle = nullptr;
  std::shared_ptr<Graph> graph;
  CUgraph known = nullptr;
  VMEM_EMU_TRY(captures::end(*stream, graph, known));
  *graph_handle = known ? known : machine().graphs.insert(std::move(graph));
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) try {
  VMEM_EMU_TRY(enter());
  if (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, this_thread().capture_mode);
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH
