// Entry points that programs call and vmem does not (vmem's own: gpu/driver_table.hpp). X(name) for
// each, by base name.
#pragma once

#define VMEM_EMU_LAUNCH_FUNCTIONS(X) \
  X(cuCtxSynchronize_v2)             \
  X(cuLaunchKernelEx)                \
  X(cuLaunchCooperativeKernel)       \
  X(cuLibraryLoadData)               \
  X(cuLibraryUnload)                 \
  X(cuLibraryGetKernel)              \
  X(cuKernelGetFunction)             \
  X(cuKernelGetName)                 \
  X(cuKernelGetParamInfo)            \
  X(cuStreamWriteValue32)            \
  X(cuStreamWriteValue64)            \
  X(cuStreamWaitValue32)             \
  X(cuStreamWaitValue64)             \
  X(cuStreamBatchMemOp)              \
  X(cuEventRecordWithFlags)

#define VMEM_EMU_GRAPH_FUNCTIONS(X)     \
  X(cuGraphCreate)                      \
  X(cuGraphClone)                       \
  X(cuGraphAddKernelNode)               \
  X(cuGraphAddMemcpyNode)               \
  X(cuGraphAddMemsetNode)               \
  X(cuGraphAddChildGraphNode)           \
  X(cuGraphAddEmptyNode)                \
  X(cuGraphAddNode)                     \
  X(cuGraphAddDependencies)             \
  X(cuGraphKernelNodeSetParams)         \
  X(cuGraphMemcpyNodeSetParams)         \
  X(cuGraphMemsetNodeSetParams)         \
  X(cuGraphNodeSetParams)               \
  X(cuGraphInstantiateWithFlags)        \
  X(cuGraphInstantiateWithParams)       \
  X(cuGraphLaunch)                      \
  X(cuGraphExecUpdate)                  \
  X(cuGraphExecKernelNodeSetParams)     \
  X(cuGraphExecMemcpyNodeSetParams)     \
  X(cuGraphExecMemsetNodeSetParams)     \
  X(cuGraphExecChildGraphNodeSetParams) \
  X(cuGraphExecNodeSetParams)           \
  X(cuGraphExecDestroy)                 \
  X(cuStreamBeginCaptureToGraph)

#define VMEM_EMU_MEMORY_FUNCTIONS(X) \
  X(cuMemAllocPitch)                 \
  X(cuMemAllocHost)                  \
  X(cuMemAllocFromPoolAsync)         \
  X(cuDeviceGetDefaultMemPool)       \
  X(cuMemPoolCreate)                 \
  X(cuMemPoolDestroy)                \
  X(cuMemGetAddressRange)            \
  X(cuPointerGetAttributes)          \
  X(cuPointerSetAttribute)           \
  X(cuIpcGetMemHandle)               \
  X(cuMemRetainAllocationHandle)     \
  X(cuMemGetHandleForAddressRange)   \
  X(cuMemcpy)                        \
  X(cuMemcpyHtoD)                    \
  X(cuMemcpyDtoH)                    \
  X(cuMemcpyDtoD)                    \
  X(cuMemcpyPeer)                    \
  X(cuMemcpy2D)                      \
  X(cuMemcpy2DUnaligned)             \
  X(cuMemcpy2DAsync)                 \
  X(cuMemcpy3D)                      \
  X(cuMemcpy3DAsync)                 \
  X(cuMemcpy3DPeer)                  \
  X(cuMemcpy3DPeerAsync)             \
  X(cuMemcpy3DBatchAsync)            \
  X(cuMemcpyDtoA)                    \
  X(cuMemcpyAtoD)                    \
  X(cuMemsetD8)                      \
  X(cuMemsetD16)                     \
  X(cuMemsetD32)                     \
  X(cuMemsetD2D8)                    \
  X(cuMemsetD2D16)                   \
  X(cuMemsetD2D32)                   \
  X(cuMemsetD2D8Async)               \
  X(cuMemsetD2D16Async)              \
  X(cuMemsetD2D32Async)              \
  X(cuArrayCreate)                   \
  X(cuArrayDestroy)                  \
  X(cuTexObjectCreate)               \
  X(cuTexObjectDestroy)              \
  X(cuTexObjectGetResourceDesc)

#define VMEM_EMU_PROGRAM_FUNCTIONS(X) \
  VMEM_EMU_LAUNCH_FUNCTIONS(X)        \
  VMEM_EMU_GRAPH_FUNCTIONS(X)         \
  VMEM_EMU_MEMORY_FUNCTIONS(X)

// Entry points with a per-thread variant in cuda.h, whose null or default stream is the calling
// thread's: S(name) with a stream parameter (name_ptsz), D(name) without (name_ptds). A variant
// needs only a line here, provided the function takes its stream from enter(handle, ...), with a
// null handle if the call names no stream (per_thread.cpp).
#define VMEM_EMU_LAUNCH_VARIANTS(S) \
  S(cuLaunchKernel)                 \
  S(cuLaunchKernelEx)               \
  S(cuLaunchCooperativeKernel)      \
  S(cuLaunchHostFunc)               \
  S(cuStreamWriteValue32)           \
  S(cuStreamWriteValue64)           \
  S(cuStreamWaitValue32)            \
  S(cuStreamWaitValue64)            \
  S(cuStreamBatchMemOp)             \
  S(cuStreamSynchronize)            \
  S(cuStreamQuery)                  \
  S(cuStreamWaitEvent)              \
  S(cuStreamGetCtx)                 \
  S(cuStreamGetId)                  \
  S(cuEventRecord)                  \
  S(cuEventRecordWithFlags)

#define VMEM_EMU_GRAPH_VARIANTS(S) \
  S(cuGraphLaunch)                 \
  S(cuGraphInstantiateWithParams)  \
  S(cuStreamBeginCaptureToGraph)   \
  S(cuStreamBeginCapture)          \
  S(cuStreamEndCapture)            \
  S(cuStreamIsCapturing)

#define VMEM_EMU_MEMORY_VARIANTS(S, D) \
  S(cuMemAllocAsync)                   \
  S(cuMemAllocFromPoolAsync)           \
  S(cuMemFreeAsync)                    \
  S(cuMemcpyAsync)                     \
  S(cuMemcpyHtoDAsync)                 \
  S(cuMemcpyDtoHAsync)                 \
  S(cuMemcpyDtoDAsync)                 \
  S(cuMemcpyPeerAsync)                 \
  S(cuMemcpy2DAsync)                   \
  S(cuMemcpy3DAsync)                   \
  S(cuMemcpy3DPeerAsync)               \
  S(cuMemcpyBatchAsync)                \
  S(cuMemcpy3DBatchAsync)              \
  S(cuMemsetD8Async)                   \
  S(cuMemsetD16Async)                  \
  S(cuMemsetD32Async)                  \
  S(cuMemsetD2D8Async)                 \
  S(cuMemsetD2D16Async)                \
  S(cuMemsetD2D32Async)                \
  D(cuMemcpy)                          \
  D(cuMemcpyHtoD)                      \
  D(cuMemcpyDtoH)                      \
  D(cuMemcpyDtoD)                      \
  D(cuMemcpyPeer)                      \
  D(cuMemcpy2D)                        \
  D(cuMemcpy2DUnaligned)               \
  D(cuMemcpy3D)                        \
  D(cuMemcpy3DPeer)                    \
  D(cuMemcpyDtoA)                      \
  D(cuMemcpyAtoD)                      \
  D(cuMemsetD8)                        \
  D(cuMemsetD16)                       \
  D(cuMemsetD32)                       \
  D(cuMemsetD2D8)                      \
  D(cuMemsetD2D16)                     \
  D(cuMemsetD2D32)

#define VMEM_EMU_PER_THREAD_VARIANTS(S, D) \
  VMEM_EMU_LAUNCH_VARIANTS(S)              \
  VMEM_EMU_GRAPH_VARIANTS(S)               \
  VMEM_EMU_MEMORY_VARIANTS(S, D)
