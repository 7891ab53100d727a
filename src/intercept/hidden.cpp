// References that no launch shows: the memory behind them stays accessible in its present place for
// its lifetime.
#include "intercept/hidden.hpp"

#include "intercept/hook_table.hpp"
#include "intercept/implementations.hpp"

namespace vmem::intercept {

void keep(runtime::Runtime& runtime, std::uintptr_t address, const char* why) {
  if (!ours(&runtime, address) || !runtime.addresses().allocation_at(address)) return;
  if (auto kept = runtime.requests().keep(address); !kept) (void)report(why, kept.error());
}

namespace {

void keep_if_running(CUdeviceptr address, const char* why) {
  if (runtime::Runtime* runtime = running()) keep(*runtime, address, why);
}

constexpr const char* kOfStreams = "memory that a stream waits for or writes to";
template <class F, class Value>
CUresult on_kept(Call<F> call, CUstream stream, CUdeviceptr address, Value value, unsigned flags) {
  keep_if_running(address, kOfStreams);
  return call(stream, address, value, flags);
}

CUdeviceptr memory_of(const CUDA_RESOURCE_DESC& resource) {
  switch (resource.resType) {
    case CU_RESOURCE_TYPE_LINEAR:
      return resource.res.linear.devPtr;
    case CU_RESOURCE_TYPE_PITCH2D:
      return resource.res.pitch2D.devPtr;
    default:
      return 0;  // arrays are the driver's own
  }
}

CUdeviceptr memory_of(const CUstreamBatchMemOpParams& operation) {
  switch (operation.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      return operation.waitValue.address;
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      return operation.writeValue.address;
    default:
      return 0;
  }
}

}  // namespace

CUresult tex_object_create(Call<decltype(::cuTexObjectCreate)> call, CUtexObject* texture,
                           const CUDA_RESOURCE_DESC* resource, const CUDA_TEXTURE_DESC* how,
                           const CUDA_RESOURCE_VIEW_DESC* view) {
  if (resource != nullptr) keep_if_running(memory_of(*resource), "memory under a texture");
  return call(texture, resource, how, view);
}

CUresult stream_write_value_32(Call<decltype(::cuStreamWriteValue32)> call, CUstream stream, CUdeviceptr address,
                               cuuint32_t value, unsigned flags) {
  return on_kept(call, stream, address, value, flags);
}
CUresult stream_write_value_64(Call<decltype(::cuStreamWriteValue64)> call, CUstream stream, CUdeviceptr address,
                               cuuint64_t value, unsigned flags) {
  return on_kept(call, stream, address, value, flags);
}
CUresult stream_wait_value_32(Call<decltype(::cuStreamWaitValue32)> call, CUstream stream, CUdeviceptr address,
                              cuuint32_t value, unsigned flags) {
  return on_kept(call, stream, address, value, flags);
}
CUresult stream_wait_value_64(Call<decltype(::cuStreamWaitValue64)> call, CUstream stream, CUdeviceptr address,
                              cuuint64_t value, unsigned flags) {
  return on_kept(call, stream, address, value, flags);
}
CUresult stream_batch_mem_op(Call<decltype(::cuStreamBatchMemOp)> call, CUstream stream, unsigned count,
                             CUstreamBatchMemOpParams* operations, unsigned flags) {
  constexpr unsigned kLimit = 256;  // the driver refuses this many operations
  for (unsigned i = 0; operations != nullptr && count < kLimit && i < count; ++i)
    keep_if_running(memory_of(operations[i]), kOfStreams);
  return call(stream, count, operations, flags);
}

}  // namespace vmem::intercept
