// NCCL's collectives. Their kernels take buffers as parameters or through NCCL's own queues, whose
// format is unknown. So vmem holds the buffers that the program passes to NCCL from the call, or
// from the end of its group, until the kernels are queued.
#pragma once

namespace vmem::intercept {

// The hook over an NCCL function that a program has looked up; `function` itself if there is none.
void* nccl_hook(const char* name, void* function);

}  // namespace vmem::intercept
