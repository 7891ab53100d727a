// Every CUDA driver function that vmem calls, loaded at run time from libcuda.so.1 or from the
// emulated driver. vmem never links libcuda. cuda.h renames functions to their current ABI version
// (cuMemAlloc becomes cuMemAlloc_v2). Driver::load looks up the renamed symbol, so the header and
// the table cannot disagree.
#pragma once

#include <cuda.h>

// X(name): vmem cannot run without these.
#define VMEM_DRIVER_REQUIRED(X)             \
  X(cuInit)                                 \
  X(cuDriverGetVersion)                     \
  X(cuGetErrorName)                         \
  X(cuGetErrorString)                       \
  X(cuDeviceGet)                            \
  X(cuDeviceGetCount)                       \
  X(cuDeviceGetName)                        \
  X(cuDeviceGetUuid)                        \
  X(cuDeviceGetAttribute)                   \
  X(cuDeviceTotalMem)                       \
  X(cuDeviceCanAccessPeer)                  \
  X(cuDeviceGetP2PAttribute)                \
  X(cuDevicePrimaryCtxRetain)               \
  X(cuDevicePrimaryCtxRelease)              \
  X(cuDevicePrimaryCtxReset)                \
  X(cuDevicePrimaryCtxGetState)             \
  X(cuCtxGetCurrent)                        \
  X(cuCtxSetCurrent)                        \
  X(cuCtxPushCurrent)                       \
  X(cuCtxPopCurrent)                        \
  X(cuCtxGetDevice)                         \
  X(cuCtxSynchronize)                       \
  X(cuCtxEnablePeerAccess)                  \
  X(cuMemGetInfo)                           \
  X(cuMemAlloc)                             \
  X(cuMemFree)                              \
  X(cuMemAllocAsync)                        \
  X(cuMemFreeAsync)                         \
  X(cuMemHostAlloc)                         \
  X(cuMemFreeHost)                          \
  X(cuMemHostGetDevicePointer)              \
  X(cuMemHostRegister)                      \
  X(cuMemHostUnregister)                    \
  X(cuPointerGetAttribute)                  \
  X(cuMemAddressReserve)                    \
  X(cuMemAddressFree)                       \
  X(cuMemCreate)                            \
  X(cuMemRelease)                           \
  X(cuMemMap)                               \
  X(cuMemUnmap)                             \
  X(cuMemSetAccess)                         \
  X(cuMemGetAccess)                         \
  X(cuMemGetAllocationGranularity)          \
  X(cuMemGetAllocationPropertiesFromHandle) \
  X(cuMemExportToShareableHandle)           \
  X(cuMemImportFromShareableHandle)         \
  X(cuMemcpyAsync)                          \
  X(cuMemcpyHtoDAsync)                      \
  X(cuMemcpyDtoHAsync)                      \
  X(cuMemcpyDtoDAsync)                      \
  X(cuMemcpyPeerAsync)                      \
  X(cuMemsetD8Async)                        \
  X(cuMemsetD16Async)                       \
  X(cuMemsetD32Async)                       \
  X(cuStreamCreate)                         \
  X(cuStreamCreateWithPriority)             \
  X(cuStreamDestroy)                        \
  X(cuStreamSynchronize)                    \
  X(cuStreamQuery)                          \
  X(cuStreamWaitEvent)                      \
  X(cuStreamGetCtx)                         \
  X(cuStreamIsCapturing)                    \
  X(cuStreamBeginCapture)                   \
  X(cuStreamEndCapture)                     \
  X(cuThreadExchangeStreamCaptureMode)      \
  X(cuGraphDestroy)                         \
  X(cuEventCreate)                          \
  X(cuEventDestroy)                         \
  X(cuEventRecord)                          \
  X(cuEventQuery)                           \
  X(cuEventSynchronize)                     \
  X(cuEventElapsedTime)                     \
  X(cuLaunchHostFunc)                       \
  X(cuModuleLoadData)                       \
  X(cuModuleUnload)                         \
  X(cuModuleGetFunction)                    \
  X(cuFuncSetAttribute)                     \
  X(cuLaunchKernel)

// X(name): null in older drivers; callers check before the call.
#define VMEM_DRIVER_OPTIONAL(X) \
  X(cuMemcpyBatchAsync)         \
  X(cuStreamGetId)              \
  X(cuDeviceGetPCIBusId)        \
  X(cuFuncGetParamInfo)         \
  X(cuFuncGetName)

// X(name): used only by interception; null in older drivers.
#define VMEM_DRIVER_INTERCEPTION(X) \
  X(cuKernelGetParamInfo)           \
  X(cuKernelGetName)                \
  X(cuDeviceGetDefaultMemPool)      \
  X(cuGraphGetNodes)                \
  X(cuGraphNodeGetType)             \
  X(cuGraphKernelNodeGetParams)     \
  X(cuGraphMemcpyNodeGetParams)     \
  X(cuGraphMemsetNodeGetParams)     \
  X(cuGraphChildGraphNodeGetGraph)

namespace vmem::gpu {

struct DriverTable {
#define VMEM_DECLARE(name) decltype(&::name) name = nullptr;
  VMEM_DRIVER_REQUIRED(VMEM_DECLARE)
  VMEM_DRIVER_OPTIONAL(VMEM_DECLARE)
  VMEM_DRIVER_INTERCEPTION(VMEM_DECLARE)
#undef VMEM_DECLARE
};

}  // namespace vmem::gpu
