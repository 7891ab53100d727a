// Names and descriptions of CUresult values.
#include "gpu/emu/cuda_api.hpp"

namespace {

const char* name_of(CUresult error) {
#define VMEM_NAME(code) \
  case code:            \
    return #code;
  switch (error) {
    VMEM_NAME(CUDA_SUCCESS)
    VMEM_NAME(CUDA_ERROR_INVALID_VALUE)
    VMEM_NAME(CUDA_ERROR_OUT_OF_MEMORY)
    VMEM_NAME(CUDA_ERROR_NOT_INITIALIZED)
    VMEM_NAME(CUDA_ERROR_DEINITIALIZED)
    VMEM_NAME(CUDA_ERROR_PROFILER_DISABLED)
    VMEM_NAME(CUDA_ERROR_PROFILER_NOT_INITIALIZED)
    VMEM_NAME(CUDA_ERROR_PROFILER_ALREADY_STARTED)
    VMEM_NAME(CUDA_ERROR_PROFILER_ALREADY_STOPPED)
    VMEM_NAME(CUDA_ERROR_STUB_LIBRARY)
    VMEM_NAME(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER)
    VMEM_NAME(CUDA_ERROR_DEVICE_UNAVAILABLE)
    VMEM_NAME(CUDA_ERROR_NO_DEVICE)
    VMEM_NAME(CUDA_ERROR_INVALID_DEVICE)
    VMEM_NAME(CUDA_ERROR_DEVICE_NOT_LICENSED)
    VMEM_NAME(CUDA_ERROR_INVALID_IMAGE)
    VMEM_NAME(CUDA_ERROR_INVALID_CONTEXT)
    VMEM_NAME(CUDA_ERROR_CONTEXT_ALREADY_CURRENT)
    VMEM_NAME(CUDA_ERROR_MAP_FAILED)
    VMEM_NAME(CUDA_ERROR_UNMAP_FAILED)
    VMEM_NAME(CUDA_ERROR_ARRAY_IS_MAPPED)
    VMEM_NAME(CUDA_ERROR_ALREADY_MAPPED)
    VMEM_NAME(CUDA_ERROR_NO_BINARY_FOR_GPU)
    VMEM_NAME(CUDA_ERROR_ALREADY_ACQUIRED)
    VMEM_NAME(CUDA_ERROR_NOT_MAPPED)
    VMEM_NAME(CUDA_ERROR_NOT_MAPPED_AS_ARRAY)
    VMEM_NAME(CUDA_ERROR_NOT_MAPPED_AS_POINTER)
    VMEM_NAME(CUDA_ERROR_ECC_UNCORRECTABLE)
    VMEM_NAME(CUDA_ERROR_UNSUPPORTED_LIMIT)
    VMEM_NAME(CUDA_ERROR_CONTEXT_ALREADY_IN_USE)
    VMEM_NAME(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)
    VMEM_NAME(CUDA_ERROR_INVALID_PTX)
    VMEM_NAME(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT)
    VMEM_NAME(CUDA_ERROR_NVLINK_UNCORRECTABLE)
    VMEM_NAME(CUDA_ERROR_JIT_COMPILER_NOT_FOUND)
    VMEM_NAME(CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
    VMEM_NAME(CUDA_ERROR_JIT_COMPILATION_DISABLED)
    VMEM_NAME(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY)
    VMEM_NAME(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC)
    VMEM_NAME(CUDA_ERROR_CONTAINED)
    VMEM_NAME(CUDA_ERROR_INVALID_SOURCE)
    VMEM_NAME(CUDA_ERROR_FILE_NOT_FOUND)
    VMEM_NAME(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND)
    VMEM_NAME(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED)
    VMEM_NAME(CUDA_ERROR_OPERATING_SYSTEM)
    VMEM_NAME(CUDA_ERROR_INVALID_HANDLE)
    VMEM_NAME(CUDA_ERROR_ILLEGAL_STATE)
    VMEM_NAME(CUDA_ERROR_LOSSY_QUERY)
    VMEM_NAME(CUDA_ERROR_NOT_FOUND)
    VMEM_NAME(CUDA_ERROR_NOT_READY)
    VMEM_NAME(CUDA_ERROR_ILLEGAL_ADDRESS)
    VMEM_NAME(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)
    VMEM_NAME(CUDA_ERROR_LAUNCH_TIMEOUT)
    VMEM_NAME(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING)
    VMEM_NAME(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
    VMEM_NAME(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED)
    VMEM_NAME(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE)
    VMEM_NAME(CUDA_ERROR_CONTEXT_IS_DESTROYED)
    VMEM_NAME(CUDA_ERROR_ASSERT)
    VMEM_NAME(CUDA_ERROR_TOO_MANY_PEERS)
    VMEM_NAME(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
    VMEM_NAME(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
    VMEM_NAME(CUDA_ERROR_HARDWARE_STACK_ERROR)
    VMEM_NAME(CUDA_ERROR_ILLEGAL_INSTRUCTION)
    VMEM_NAME(CUDA_ERROR_MISALIGNED_ADDRESS)
    VMEM_NAME(CUDA_ERROR_INVALID_ADDRESS_SPACE)
    VMEM_NAME(CUDA_ERROR_INVALID_PC)
    VMEM_NAME(CUDA_ERROR_LAUNCH_FAILED)
    VMEM_NAME(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE)
    VMEM_NAME(CUDA_ERROR_TENSOR_MEMORY_LEAK)
    VMEM_NAME(CUDA_ERROR_NOT_PERMITTED)
    VMEM_NAME(CUDA_ERROR_NOT_SUPPORTED)
    VMEM_NAME(CUDA_ERROR_SYSTEM_NOT_READY)
    VMEM_NAME(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)
    VMEM_NAME(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE)
    VMEM_NAME(CUDA_ERROR_MPS_CONNECTION_FAILED)
    VMEM_NAME(CUDA_ERROR_MPS_RPC_FAILURE)
    VMEM_NAME(CUDA_ERROR_MPS_SERVER_NOT_READY)
    VMEM_NAME(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED)
    VMEM_NAME(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED)
    VMEM_NAME(CUDA_ERROR_MPS_CLIENT_TERMINATED)
    VMEM_NAME(CUDA_ERROR_CDP_NOT_SUPPORTED)
    VMEM_NAME(CUDA_ERROR_CDP_VERSION_MISMATCH)
    VMEM_NAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    VMEM_NAME(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
    VMEM_NAME(CUDA_ERROR_STREAM_CAPTURE_MERGE)
    VMEM_NAME(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)
    VMEM_NAME(CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
    VMEM_NAME(CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
    VMEM_NAME(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    VMEM_NAME(CUDA_ERROR_CAPTURED_EVENT)
    VMEM_NAME(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
    VMEM_NAME(CUDA_ERROR_TIMEOUT)
    VMEM_NAME(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)
    VMEM_NAME(CUDA_ERROR_EXTERNAL_DEVICE)
    VMEM_NAME(CUDA_ERROR_INVALID_CLUSTER_SIZE)
    VMEM_NAME(CUDA_ERROR_FUNCTION_NOT_LOADED)
    VMEM_NAME(CUDA_ERROR_INVALID_RESOURCE_TYPE)
    VMEM_NAME(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION)
    VMEM_NAME(CUDA_ERROR_KEY_ROTATION)
    VMEM_NAME(CUDA_ERROR_UNKNOWN)
    default:
      return nullptr;
  }
#undef VMEM_NAME
}

// Descriptions of results; a result without one gives its name.
const char* words_of(CUresult error) {
  switch (error) {
    case CUDA_SUCCESS:
      return "no error";
    case CUDA_ERROR_INVALID_VALUE:
      return "invalid argument";
    case CUDA_ERROR_OUT_OF_MEMORY:
      return "out of memory";
    case CUDA_ERROR_NOT_INITIALIZED:
      return "initialization error";
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
      return "CUDA-capable device(s) is/are busy or unavailable";
    case CUDA_ERROR_NO_DEVICE:
      return "no CUDA-capable device is detected";
    case CUDA_ERROR_INVALID_DEVICE:
      return "invalid device ordinal";
    case CUDA_ERROR_INVALID_IMAGE:
      return "device kernel image is invalid";
    case CUDA_ERROR_INVALID_CONTEXT:
      return "invalid device context";
    case CUDA_ERROR_ALREADY_MAPPED:
      return "resource already mapped";
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
      return "no kernel image is available for execution on the device";
    case CUDA_ERROR_NOT_MAPPED:
      return "resource not mapped";
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
      return "peer access is not supported between these two devices";
    case CUDA_ERROR_INVALID_PTX:
      return "a PTX JIT compilation failed";
    case CUDA_ERROR_OPERATING_SYSTEM:
      return "OS call failed or operation not supported on this OS";
    case CUDA_ERROR_INVALID_HANDLE:
      return "invalid resource handle";
    case CUDA_ERROR_ILLEGAL_STATE:
      return "the operation cannot be performed in the present state";
    case CUDA_ERROR_NOT_FOUND:
      return "named symbol not found";
    case CUDA_ERROR_NOT_READY:
      return "device not ready";
    case CUDA_ERROR_ILLEGAL_ADDRESS:
      return "an illegal memory access was encountered";
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
      return "too many resources requested for launch";
    case CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED:
      return "peer access is already enabled";
    case CUDA_ERROR_PEER_ACCESS_NOT_ENABLED:
      return "peer access has not been enabled";
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
      return "context is destroyed";
    case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
      return "part or all of the requested memory range is already mapped";
    case CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED:
      return "pointer does not correspond to a registered memory region";
    case CUDA_ERROR_LAUNCH_FAILED:
      return "unspecified launch failure";
    case CUDA_ERROR_NOT_PERMITTED:
      return "operation not permitted";
    case CUDA_ERROR_NOT_SUPPORTED:
      return "operation not supported";
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
      return "operation not permitted when stream is capturing";
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
      return "operation failed due to a previous error during capture";
    case CUDA_ERROR_STREAM_CAPTURE_MERGE:
      return "operation would result in a merge of separate capture sequences";
    case CUDA_ERROR_STREAM_CAPTURE_UNMATCHED:
      return "capture was not ended in the same stream as it began";
    case CUDA_ERROR_STREAM_CAPTURE_UNJOINED:
      return "capturing stream has unjoined work";
    case CUDA_ERROR_STREAM_CAPTURE_ISOLATION:
      return "dependency created on uncaptured work in another stream";
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
      return "operation would make the legacy stream depend on a capturing blocking stream";
    case CUDA_ERROR_CAPTURED_EVENT:
      return "operation not permitted on an event last recorded in a capturing stream";
    case CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD:
      return "attempt to terminate a thread-local capture sequence from another thread";
    case CUDA_ERROR_UNKNOWN:
      return "unknown error";
    default:
      return name_of(error);
  }
}

}  // namespace

CUresult cuGetErrorName(CUresult error, const char** text) {
  if (!text) return CUDA_ERROR_INVALID_VALUE;
  *text = name_of(error);
  return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  if (!text) return CUDA_ERROR_INVALID_VALUE;
  *text = words_of(error);
  return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
