// The kernels of the driver tests, the same on the emulated driver (host functions) and on a GPU (a fat binary).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.hpp"
#include "gpu/handles.hpp"

namespace vmem::gpu {

// Their parameters, in order. Flags lie in pinned host memory and are shared between the host and running kernels.
//   fill_words(uint32_t* words, uint32_t value, uint64_t count)
//   add_words(uint32_t* words, uint32_t delta, uint64_t count)
//   copy_words(uint32_t* target, const uint32_t* source, uint64_t count)
//   wait_for_flag(const uint32_t* flag)                 ends when *flag is not 0
//   read_until_flag(const uint32_t* words, uint64_t count, uint32_t* started, const uint32_t* flag, uint32_t* sum)
//       sets *started, reads the words again and again until *flag is not 0, and stores the last sum
// Errors: UNSUPPORTED when this program was built without nvcc and the driver is real.
Result<Module> load_test_kernels(DriverRef driver);

// A launch of one thread block; parameters as the kernel declares them.
template <class... Parameters>
CUresult launch(const DriverRef& driver, CUfunction function, CUstream stream, Parameters... parameters) {
  void* pointers[] = {static_cast<void*>(&parameters)...};
  return (*driver)->cuLaunchKernel(function, 1, 1, 1, 128, 1, 1, 0, stream, pointers, nullptr);
}

}  // namespace vmem::gpu
