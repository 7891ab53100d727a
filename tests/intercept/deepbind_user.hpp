#pragma once

#include <cuda.h>

// The driver functions as a library finds them that was loaded with RTLD_DEEPBIND.
struct DeepbindUser {
  decltype(&cuMemAlloc) mem_alloc;
  decltype(&cuMemFree) mem_free;
  decltype(&cuLaunchKernel) launch_kernel;
  decltype(&cuGetProcAddress) get_proc_address;
  void* (*looked_up)();  // by dlsym
  void* (*asked_for)();  // by cuGetProcAddress
};
