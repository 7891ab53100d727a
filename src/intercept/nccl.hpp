// NCCL's collectives. Their kernels are given what they work on in parameters, or in queues of NCCL's own that nothing is known of: so the
// buffers that the program hands to NCCL are held from the call, or from the end of its group, until the kernels are queued.
#pragma once

namespace vmem::intercept {

// The hook over an NCCL function that a program has looked up, or `function` where there is none.
void* nccl_hook(const char* name, void* function);

}  // namespace vmem::intercept
