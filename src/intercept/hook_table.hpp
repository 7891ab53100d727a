// The driver functions that are replaced: VMEM_HOOKS(P, S, D), where P(name, implementation) has no default-stream variant,
// S(...) has one for streams (_ptsz), D(...) one for calls without a stream (_ptds). The names are cuda.h's, whose macros give the
// symbol of the current version; older versions of a function pass through untouched.
#pragma once

#define VMEM_HOOKS(P, S, D)                                          \
  P(cuGetProcAddress, get_proc_address)                              \
  S(cuLaunchKernel, launch_kernel)                                   \
  S(cuLaunchKernelEx, launch_kernel_ex)                              \
  S(cuLaunchCooperativeKernel, launch_cooperative_kernel)            \
  P(cuModuleUnload, module_unload)                                   \
  P(cuLibraryUnload, library_unload)                                 \
  P(cuGraphInstantiateWithFlags, graph_instantiate_with_flags)       \
  S(cuGraphInstantiateWithParams, graph_instantiate_with_params)     \
  S(cuGraphLaunch, graph_launch)                                     \
  P(cuGraphExecUpdate, graph_exec_update)                            \
  P(cuGraphExecKernelNodeSetParams, graph_exec_kernel_node)          \
  P(cuGraphExecMemcpyNodeSetParams, graph_exec_memcpy_node)          \
  P(cuGraphExecMemsetNodeSetParams, graph_exec_memset_node)          \
  P(cuGraphExecDestroy, graph_exec_destroy)                          \
  P(cuMemAlloc, mem_alloc)                                           \
  P(cuMemAllocPitch, mem_alloc_pitch)                                \
  P(cuMemFree, mem_free)                                             \
  S(cuMemAllocAsync, mem_alloc_async)                                \
  S(cuMemAllocFromPoolAsync, mem_alloc_from_pool_async)              \
  S(cuMemFreeAsync, mem_free_async)                                  \
  P(cuMemHostAlloc, mem_host_alloc)                                  \
  P(cuMemAllocHost, mem_alloc_host)                                  \
  P(cuMemFreeHost, mem_free_host)                                    \
  P(cuMemGetInfo, mem_get_info)                                      \
  P(cuDeviceTotalMem, device_total_mem)                              \
  P(cuMemGetAddressRange, mem_get_address_range)                     \
  P(cuPointerGetAttribute, pointer_get_attribute)                    \
  P(cuPointerGetAttributes, pointer_get_attributes)                  \
  P(cuPointerSetAttribute, pointer_set_attribute)                    \
  P(cuIpcGetMemHandle, ipc_get_mem_handle)                           \
  P(cuMemRetainAllocationHandle, mem_retain_allocation_handle)       \
  P(cuMemGetHandleForAddressRange, mem_get_handle_for_address_range) \
  D(cuMemcpy, copy)                                                  \
  S(cuMemcpyAsync, copy_async)                                       \
  D(cuMemcpyHtoD, copy_from_host)                                    \
  S(cuMemcpyHtoDAsync, copy_from_host_async)                         \
  D(cuMemcpyDtoH, copy_to_host)                                      \
  S(cuMemcpyDtoHAsync, copy_to_host_async)                           \
  D(cuMemcpyDtoD, copy_device)                                       \
  S(cuMemcpyDtoDAsync, copy_device_async)                            \
  D(cuMemcpyPeer, copy_peer)                                         \
  S(cuMemcpyPeerAsync, copy_peer_async)                              \
  D(cuMemcpy2D, copy_2d)                                             \
  D(cuMemcpy2DUnaligned, copy_2d_unaligned)                          \
  S(cuMemcpy2DAsync, copy_2d_async)                                  \
  D(cuMemcpy3D, copy_3d)                                             \
  S(cuMemcpy3DAsync, copy_3d_async)                                  \
  D(cuMemsetD8, fill_8)                                              \
  D(cuMemsetD16, fill_16)                                            \
  D(cuMemsetD32, fill_32)                                            \
  S(cuMemsetD8Async, fill_8_async)                                   \
  S(cuMemsetD16Async, fill_16_async)                                 \
  S(cuMemsetD32Async, fill_32_async)                                 \
  D(cuMemsetD2D8, fill_2d_8)                                         \
  D(cuMemsetD2D16, fill_2d_16)                                       \
  D(cuMemsetD2D32, fill_2d_32)                                       \
  S(cuMemsetD2D8Async, fill_2d_8_async)                              \
  S(cuMemsetD2D16Async, fill_2d_16_async)                            \
  S(cuMemsetD2D32Async, fill_2d_32_async)                            \
  P(cuTexObjectCreate, tex_object_create)                            \
  S(cuStreamWriteValue32, stream_write_value_32)                     \
  S(cuStreamWriteValue64, stream_write_value_64)                     \
  S(cuStreamWaitValue32, stream_wait_value_32)                       \
  S(cuStreamWaitValue64, stream_wait_value_64)                       \
  S(cuStreamBatchMemOp, stream_batch_mem_op)                         \
  P(cuStreamDestroy, stream_destroy)                                 \
  S(cuStreamSynchronize, stream_synchronize)                         \
  S(cuStreamQuery, stream_query)                                     \
  P(cuEventSynchronize, event_synchronize)                           \
  P(cuEventQuery, event_query)
