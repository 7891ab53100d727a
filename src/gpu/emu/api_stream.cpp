// Streams.
#include "gpu/emu/api_entry.hpp"

namespace vmem::emu {
namespace {

std::shared_ptr<Stream> per_thread_stream(const std::shared_ptr<Context>& context) {
  auto& streams = this_thread().per_thread_streams;
  auto& stream = streams[context.get()];
  // `context` may be a new context at the address of a destroyed one.
  if (!stream || stream->context() != context) stream = context->create_stream(StreamKind::blocking);
  return stream;
}

bool names_legacy(CUstream handle) {
  return handle == CU_STREAM_LEGACY || (handle == nullptr && !this_thread().null_is_per_thread);
}

}  // namespace

CUresult enter(CUstream handle, std::shared_ptr<Stream>& stream) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    std::shared_ptr<Context> context;
    VMEM_EMU_TRY(enter(context));
    stream = names_legacy(handle) ? context->legacy_stream() : per_thread_stream(context);
    return CUDA_SUCCESS;
  }
  VMEM_EMU_TRY(enter());
  stream = machine().streams.find(handle);
  return stream ? stream->context()->usable() : CUDA_ERROR_INVALID_HANDLE;
}

CUresult submit(const std::shared_ptr<Stream>& stream, NodeWork work) {
  if (const auto captured = captures::intercept_operation(*stream, &work)) return *captured;
  stream->context()->submit(*stream, [work = std::move(work)] { run(work); });
  return CUDA_SUCCESS;
}

CUresult submit(const std::shared_ptr<Stream>& stream, Work work, Wait wait) {
  if (const auto captured = captures::intercept_operation(*stream)) return *captured;
  stream->context()->submit(*stream, std::move(work), AfterFault::skip, std::move(wait));
  return CUDA_SUCCESS;
}

}  // namespace vmem::emu

using namespace vmem::emu;

// Priorities are hints; every worker has the same.
CUresult cuStreamCreateWithPriority(CUstream* handle, unsigned flags, int) try {
  std::shared_ptr<Context> context;
  VMEM_EMU_TRY(enter(context));
  if (!handle || (flags != CU_STREAM_DEFAULT && flags != CU_STREAM_NON_BLOCKING)) return CUDA_ERROR_INVALID_VALUE;
  const auto kind = flags & CU_STREAM_NON_BLOCKING ? StreamKind::non_blocking : StreamKind::blocking;
  *handle = machine().streams.insert(context->create_stream(kind));
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuStreamCreate(CUstream* handle, unsigned flags) try { return cuStreamCreateWithPriority(handle, flags, 0); }
VMEM_EMU_CATCH

CUresult cuStreamDestroy(CUstream handle) try {
  VMEM_EMU_TRY(enter());
  const auto stream = machine().streams.erase(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  captures::abandon(*stream);
  stream->close();
  if (stream->idle()) stream->context()->forget_stream(stream.get());  // otherwise its worker does
  return stream->context()->usable();
}
VMEM_EMU_CATCH

CUresult cuStreamSynchronize(CUstream handle) try {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  VMEM_EMU_TRY(captures::check_query(*stream));
  VMEM_EMU_TRY(check_unsafe_call());
  stream->context()->wait_for(*stream);
  stream->context()->heap().trim();
  return stream->context()->usable();
}
VMEM_EMU_CATCH

CUresult cuStreamQuery(CUstream handle) try {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  VMEM_EMU_TRY(captures::check_query(*stream));
  VMEM_EMU_TRY(check_unsafe_call());
  if (!stream->context()->is_complete(*stream)) return CUDA_ERROR_NOT_READY;
  return stream->context()->usable();
}
VMEM_EMU_CATCH

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) try {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  *context = machine().contexts.handle_of(stream->context().get());
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuStreamGetId(CUstream handle, unsigned long long* id) try {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  *id = stream->id();
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags) try {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  const auto event = machine().events.find(event_handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (flags != CU_EVENT_WAIT_DEFAULT && flags != CU_EVENT_WAIT_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
  const auto record = event->latest();
  if (const auto captured = captures::intercept_wait(*stream, record.get())) return *captured;
  if (!record || record->complete()) return CUDA_SUCCESS;
  const Wait wait{[record] { return record->complete(); }, [record] { record->wait(); }};
  stream->context()->submit(*stream, [] {}, AfterFault::run, wait);
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* argument) try {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  return submit(stream, HostWork{function, argument});
}
VMEM_EMU_CATCH
