// Exceptions that PyTorch turns into Python's. Their types are PyTorch's own, found in the process
// at run time.
#pragma once

#include <sys/types.h>

#include "vmem/vmem.h"

namespace vmem::intercept {

// Throws c10::OutOfMemoryError (torch.OutOfMemoryError) if `out_of_memory` and libc10 exports all
// that is needed, otherwise c10::Error (RuntimeError). Returns if the process has no libc10.
// Callers up to PyTorch must have nothing to clean up: they are compiled without exceptions,
// because the process's C++ runtime unwinds, not the one in this library.
void throw_into_torch(const char* message, bool out_of_memory);

struct TorchAllocation {
  void* pointer = nullptr;
  // reason for failure; valid until the thread's next failed allocation
  const char* problem = nullptr;
  bool out_of_memory = false;
};
TorchAllocation allocate_for_torch(ssize_t bytes, int device, vmem_stream stream) noexcept;

}  // namespace vmem::intercept
