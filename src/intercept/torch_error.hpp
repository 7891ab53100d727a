// Exceptions that PyTorch turns into Python's. They are its own types, found in the process at run time.
#pragma once

#include <sys/types.h>

#include "vmem/vmem.h"

namespace vmem::intercept {

// Throws c10::OutOfMemoryError (torch.OutOfMemoryError) if asked to and libc10 has what it takes, otherwise c10::Error
// (RuntimeError). Returns if there is no libc10 in the process. Its callers up to PyTorch must have nothing to clean up: they are
// compiled without exceptions, because the process's C++ runtime, which does the unwinding, is not the one in this library.
void throw_into_torch(const char* message, bool out_of_memory);

struct TorchAllocation {
  void* pointer = nullptr;
  const char* problem = nullptr;  // why there is none, until the thread's next allocation
  bool out_of_memory = false;
};
TorchAllocation allocate_for_torch(ssize_t bytes, int device, vmem_stream stream) noexcept;

}  // namespace vmem::intercept
