// Events.
#include "gpu/emu/api_entry.hpp"

using namespace vmem::emu;

namespace {

// The event's latest record, for queries.
CUresult inspect(CUevent handle, std::shared_ptr<Event>& event, std::shared_ptr<Record>& record) {
  VMEM_EMU_TRY(enter());
  event = machine().events.find(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  VMEM_EMU_TRY(event->context->usable());
  record = event->latest();
  return captures::check_query(record.get());
}

}  // namespace

CUresult cuEventCreate(CUevent* handle, unsigned flags) try {
  std::shared_ptr<Context> context;
  VMEM_EMU_TRY(enter(context));
  constexpr unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
  if (flags & CU_EVENT_INTERPROCESS) return CUDA_ERROR_NOT_SUPPORTED;
  if (!handle || (flags & ~known)) return CUDA_ERROR_INVALID_VALUE;
  *handle = machine().events.insert(std::make_shared<Event>(context, flags));
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuEventDestroy(CUevent handle) try {
  VMEM_EMU_TRY(enter());
  const auto event = machine().events.erase(handle);
  return event ? event->context->usable() : CUDA_ERROR_INVALID_HANDLE;
}
VMEM_EMU_CATCH

CUresult cuEventRecord(CUevent event_handle, CUstream handle) try {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(handle, stream));
  const auto event = machine().events.find(event_handle);
  if (!event || event->context != stream->context()) return CUDA_ERROR_INVALID_HANDLE;
  if (const auto captured = captures::intercept_record(*stream, *event)) return *captured;
  auto record = std::make_shared<Record>();
  event->replace(record);
  stream->context()->submit_or_run(*stream, [record] { record->finish(); });
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

// External records in captures are not emulated.
CUresult cuEventRecordWithFlags(CUevent event_handle, CUstream handle, unsigned flags) try {
  if ((flags & ~unsigned{CU_EVENT_RECORD_EXTERNAL}) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (flags != 0) return CUDA_ERROR_NOT_SUPPORTED;
  return cuEventRecord(event_handle, handle);
}
VMEM_EMU_CATCH

CUresult cuEventQuery(CUevent handle) try {
  std::shared_ptr<Event> event;
  std::shared_ptr<Record> record;
  VMEM_EMU_TRY(inspect(handle, event, record));
  VMEM_EMU_TRY(check_unsafe_call());
  if (record && !record->complete()) return CUDA_ERROR_NOT_READY;
  return event->context->usable();
}
VMEM_EMU_CATCH

CUresult cuEventSynchronize(CUevent handle) try {
  std::shared_ptr<Event> event;
  std::shared_ptr<Record> record;
  VMEM_EMU_TRY(inspect(handle, event, record));
  VMEM_EMU_TRY(check_unsafe_call());
  if (record && machine().config().workers) record->wait();
  if (record && !machine().config().workers) machine().steps().run_until([&] { return record->complete(); });
  event->context->heap().trim();
  return event->context->usable();
}
VMEM_EMU_CATCH

CUresult cuEventElapsedTime(float* milliseconds, CUevent start_handle, CUevent end_handle) try {
  std::shared_ptr<Event> start, end;
  std::shared_ptr<Record> started, ended;
  VMEM_EMU_TRY(inspect(start_handle, start, started));
  VMEM_EMU_TRY(inspect(end_handle, end, ended));
  if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
  if (!started || !ended || ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING)) return CUDA_ERROR_INVALID_HANDLE;
  if (!started->complete() || !ended->complete()) return CUDA_ERROR_NOT_READY;
  *milliseconds = std::chrono::duration<float, std::milli>(ended->time() - started->time()).count();
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH
