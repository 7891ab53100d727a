// GPU versions of the kernels in test_kernels.hpp.
#include <cstdint>

extern "C" __global__ void fill_words(std::uint32_t* words, std::uint32_t value, std::uint64_t count) {
  for (std::uint64_t i = threadIdx.x; i < count; i += blockDim.x) words[i] = value;
}

extern "C" __global__ void add_words(std::uint32_t* words, std::uint32_t delta, std::uint64_t count) {
  for (std::uint64_t i = threadIdx.x; i < count; i += blockDim.x) words[i] += delta;
}

extern "C" __global__ void copy_words(std::uint32_t* target, const std::uint32_t* source, std::uint64_t count) {
  for (std::uint64_t i = threadIdx.x; i < count; i += blockDim.x) target[i] = source[i];
}

extern "C" __global__ void wait_for_flag(const volatile std::uint32_t* flag) {
  if (threadIdx.x == 0)
    while (*flag == 0) __nanosleep(1000);
}

extern "C" __global__ void read_until_flag(const volatile std::uint32_t* words, std::uint64_t count,
                                           volatile std::uint32_t* started, const volatile std::uint32_t* flag,
                                           volatile std::uint32_t* sum) {
  if (threadIdx.x != 0) return;
  std::uint32_t total = 0;
  do {
    total = 0;
    for (std::uint64_t i = 0; i < count; ++i) total += words[i];
    if (*started == 0) *started = 1;
  } while (*flag == 0);
  *sum = total;
  __threadfence_system();
}
