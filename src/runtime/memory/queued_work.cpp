#include "runtime/memory/queued_work.hpp"

#include "runtime/memory/readiness.hpp"

namespace vmem::runtime {

StreamId identify(vmem_stream stream, std::uintptr_t context) {
  if (stream == nullptr) stream = CU_STREAM_LEGACY;
  const bool is_default = stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
  return {stream, is_default ? context : 0};
}

std::uintptr_t QueuedWork::context() noexcept {
  auto context = streams_.current_context();
  return context ? reinterpret_cast<std::uintptr_t>(*context) : 0;
}

Result<std::uint64_t> QueuedWork::mark(const StreamId& stream) {
  VMEM_ASSIGN(migration::StreamRecord* const record,
              streams_.find(stream.handle, reinterpret_cast<CUcontext>(stream.context)));
  VMEM_TRY(check_device(*record));
  VMEM_ASSIGN(const pagetable::Stamp marked, streams_.mark(*record));
  return marked.word();
}

}  // namespace vmem::runtime
