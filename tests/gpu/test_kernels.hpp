// The kernels of the driver tests: host functions on the emulated driver, a fat binary on a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.hpp"
#include "gpu/handles.hpp"

namespace vmem::gpu {

// Loads the kernels. Their parameters, in order (flags lie in pinned host memory, shared by the
// host and running kernels):
//   fill_words(uint32_t* words, uint32_t value, uint64_t count)
//   add_words(uint32_t* words, uint32_t delta, uint64_t count)
//   copy_words(uint32_t* target, const uint32_t* source, uint64_t count)
//   wait_for_flag(const uint32_t* flag)                 ends when *flag is not 0
//   read_until_flag(const uint32_t* words, uint64_t count, uint32_t* started,
//                   const uint32_t* flag, uint32_t* sum)
//       sets *started, rereads the words until *flag is not 0, and stores the last sum
// Errors: UNSUPPORTED if this program was built without nvcc and the driver is real.
Result<Module> load_test_kernels(DriverRef driver);

// Launches one thread block; parameters as the kernel declares them.
template <class... Parameters>
CUresult launch(const DriverRef& driver, CUfunction function, CUstream stream, Parameters... parameters) {
  void* pointers[] = {static_cast<void*>(&parameters)...};
  return (*driver)->cuLaunchKernel(function, 1, 1, 1, 128, 1, 1, 0, stream, pointers, nullptr);
}

}  // namespace vmem::gpu
