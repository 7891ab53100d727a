// Cost of an allocation and its free, as PyTorch makes them, under the preloaded library, on the
// emulated driver. Between two calls the benchmark reads the given number of KiB, to fill the
// caches as an interpreter does. With `plain`, it measures a trivial allocator instead.
//   LD_LIBRARY_PATH=build/release/tests/intercept/driver
//     LD_PRELOAD=build/release/lib/libvmem_preload.so
//     VMEM_EMU=hbm=512MiB,host=1GiB VMEM_HBM=256MiB build/release/bin/allocation_bench 512 [plain]
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace {

using Allocate = void* (*)(ssize_t, int, CUstream);
using Free = void (*)(void*, ssize_t, int, CUstream);

struct Plain {
  std::mutex mutex;
  std::unordered_map<ssize_t, std::vector<void*>> free;
  std::unordered_map<void*, ssize_t> live;
  std::uintptr_t next = std::uintptr_t{1} << 40;
};
Plain plain;

void* plain_allocate(ssize_t bytes, int, CUstream) {
  const std::lock_guard lock(plain.mutex);
  auto& free = plain.free[bytes];
  void* made = reinterpret_cast<void*>(plain.next);
  if (free.empty()) {
    plain.next += std::uintptr_t(bytes);
  } else {
    made = free.back();
    free.pop_back();
  }
  plain.live.emplace(made, bytes);
  return made;
}

void plain_free(void* pointer, ssize_t bytes, int, CUstream) {
  const std::lock_guard lock(plain.mutex);
  plain.live.erase(pointer);
  plain.free[bytes].push_back(pointer);
}

// Reads on through 64 MiB, a cache line at a time.
void read_others(std::size_t kib) {
  static const std::vector<unsigned char> all(std::size_t{64} << 20, 1);
  static std::size_t at = 0;
  unsigned sum = 0;
  for (std::size_t line = 0; line < kib * 16; ++line) {
    sum += all[at];
    at = (at + 64) % all.size();
  }
  asm volatile("" : : "r"(sum));  // keeps the loop
}

template <class Call>
double time_ns(Call&& call) {
  const auto began = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - began).count();
}

double median(std::vector<double>& all) {
  std::nth_element(all.begin(), all.begin() + std::ptrdiff_t(all.size() / 2), all.end());
  return all[all.size() / 2];
}

}  // namespace

int main(int count, char** words) {
  const std::size_t kib = count > 1 ? std::strtoull(words[1], nullptr, 10) : 0;
  auto allocate = reinterpret_cast<Allocate>(dlsym(RTLD_DEFAULT, "vmem_torch_alloc"));
  auto give_back = reinterpret_cast<Free>(dlsym(RTLD_DEFAULT, "vmem_torch_free"));
  if (count > 2 && std::string_view(words[2]) == "plain") {
    allocate = &plain_allocate;
    give_back = &plain_free;
  }
  CUcontext context = nullptr;
  const bool ready = cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
                     cuCtxSetCurrent(context) == CUDA_SUCCESS;
  if (!ready || allocate == nullptr || give_back == nullptr) {
    std::fprintf(stderr, "allocation_bench: no driver, or the library is not preloaded\n");
    return 1;
  }
  for (const ssize_t bytes : {ssize_t{4} << 10, ssize_t{1} << 20, ssize_t{11} << 18}) {
    constexpr std::size_t kLive = 8, kPairs = 4000;
    std::vector<void*> live;
    for (std::size_t i = 0; i < kLive; ++i) live.push_back(allocate(bytes, 0, nullptr));
    std::vector<double> allocations, frees;
    for (std::size_t i = 0; i < kPairs; ++i) {
      void* made = nullptr;
      read_others(kib);
      allocations.push_back(time_ns([&] { made = allocate(bytes, 0, nullptr); }));
      read_others(kib);
      frees.push_back(time_ns([&] { give_back(live[i % kLive], bytes, 0, nullptr); }));
      live[i % kLive] = made;
    }
    for (void* pointer : live) give_back(pointer, bytes, 0, nullptr);
    std::printf("emulated driver, %zd bytes, %zu KiB read between: allocation %.0f ns, free %.0f ns (medians)\n", bytes,
                kib, median(allocations), median(frees));
  }
  return 0;
}
