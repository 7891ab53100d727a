// Memory, as an unmodified program sees it. The runs have 64 MiB of HBM.
#include <dlfcn.h>
#include <sys/types.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "intercept/program.hpp"

namespace vmem::test {
namespace {

struct Stream {
  CUstream handle = nullptr;
  Stream() { CALL(cuStreamCreate(&handle, CU_STREAM_NON_BLOCKING)); }
  ~Stream() { CALL(cuStreamDestroy(handle)); }
};

// Four times the HBM, worked through several times.
CASE(oversubscribed) {
  const Machine machine;
  const CUfunction add = machine.function("add");
  const Stream stream;
  constexpr std::size_t kBytes = 16 * kMiB, kWords = kBytes / sizeof(unsigned);
  std::vector<CUdeviceptr> buffers(16);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (i % 2 == 0) {
      CALL(cuMemAlloc(&buffers[i], kBytes));
    } else {
      CALL(cuMemAllocAsync(&buffers[i], kBytes, stream.handle));
    }
    REQUIRE(ours(buffers[i]));
    CALL(cuMemsetD32Async(buffers[i], unsigned(1000 * i), kWords, stream.handle));
  }
  for (int round = 0; round < 5; ++round) {
    for (CUdeviceptr& buffer : buffers) {
      std::size_t words = kWords;
      launch(add, stream.handle, {&buffer, &words});
    }
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const auto data = read(buffers[i], kWords, stream.handle);
    REQUIRE(std::ranges::all_of(data, [&](unsigned word) { return word == 1000 * i + 5; }));
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (i % 2 == 0) {
      CALL(cuMemFree(buffers[i]));
    } else {
      CALL(cuMemFreeAsync(buffers[i], stream.handle));
    }
  }
  REQUIRE(cuMemFree(buffers[0]) == CUDA_ERROR_INVALID_VALUE);
}

// What was freed serves again, in the order of the stream, and its old bytes do not come back over new ones.
CASE(freed_memory_serves_again) {
  const Machine machine;
  const CUfunction add = machine.function("add");
  const Stream stream;
  constexpr std::size_t kBytes = 16 * kMiB, kWords = kBytes / sizeof(unsigned);
  std::vector<CUdeviceptr> kept(8);
  for (CUdeviceptr& buffer : kept) {
    CALL(cuMemAllocAsync(&buffer, kBytes, stream.handle));
    CALL(cuMemsetD32Async(buffer, 7, kWords, stream.handle));
  }
  CUdeviceptr first = 0;
  for (unsigned round = 0; round < 20; ++round) {
    CUdeviceptr buffer = 0;
    CALL(cuMemAllocAsync(&buffer, kBytes, stream.handle));
    if (round == 0) first = buffer;
    REQUIRE(buffer == first);
    CALL(cuMemsetD32Async(buffer, round, kWords, stream.handle));
    std::size_t words = kWords;
    launch(add, stream.handle, {&buffer, &words});
    launch(add, stream.handle, {&kept[round % kept.size()], &words});
    const auto data = read(buffer, kWords, stream.handle);
    REQUIRE(std::ranges::all_of(data, [&](unsigned word) { return word == round + 1; }));
    CALL(cuMemFreeAsync(buffer, stream.handle));
  }
  unsigned sum = 0;
  for (const CUdeviceptr buffer : kept) {
    const auto data = read(buffer, kWords, stream.handle);
    REQUIRE(std::ranges::all_of(data, [&](unsigned word) { return word == data[0]; }));
    sum += data[0];
  }
  REQUIRE(sum == 8 * 7 + 20);
}

CASE(memory_is_as_large_as_the_tiers) {
  const Machine machine;
  CUdeviceptr buffer = 0;
  CALL(cuMemAlloc(&buffer, 32 * kMiB));
  std::size_t free_before = 0, total = 0;
  CALL(cuMemGetInfo(&free_before, &total));
  REQUIRE(total > 200 * kMiB && total <= 320 * kMiB);
  CUdeviceptr more = 0;
  CALL(cuMemAlloc(&more, 64 * kMiB));
  std::size_t free_after = 0;
  CALL(cuMemGetInfo(&free_after, &total));
  REQUIRE(free_before - free_after >= 64 * kMiB);
  CUdeviceptr none = 0;
  REQUIRE(cuMemAlloc(&none, std::size_t{1} << 40) == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(cuMemAlloc(&none, 0) == CUDA_ERROR_INVALID_VALUE);
  // The program goes on.
  CALL(cuMemFree(more));
  CALL(cuMemAlloc(&more, 64 * kMiB));
  CALL(cuMemFree(more));
  CALL(cuMemFree(buffer));
}

CASE(pointers_are_device_pointers) {
  const Machine machine;
  CUdeviceptr large = 0, small = 0;
  CALL(cuMemAlloc(&large, 5 * kMiB));
  CALL(cuMemAlloc(&small, 1000));
  for (const auto& [pointer, bytes] : {std::pair{large, 5 * kMiB}, {small, std::size_t{1000}}}) {
    unsigned type = 0;
    CALL(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer + 100));
    REQUIRE(type == CU_MEMORYTYPE_DEVICE);
    int ordinal = -1;
    CALL(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer + 100));
    REQUIRE(ordinal == 0);
    CUcontext context = nullptr;
    CALL(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, pointer));
    REQUIRE(context == machine.context);
    std::size_t range = 0;
    CALL(cuPointerGetAttribute(&range, CU_POINTER_ATTRIBUTE_RANGE_SIZE, pointer + 100));
    REQUIRE(range >= bytes && range <= bytes + bytes / 4);
  }
  unsigned type = 0;
  REQUIRE(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, large + 512 * kMiB) ==
          CUDA_ERROR_INVALID_VALUE);
  CALL(cuMemFree(small));
  CALL(cuMemFree(large));
}

// Uses are known even if the stream that they were queued on is gone.
CASE(streams_destroyed_with_work_pending) {
  const Machine machine;
  const CUfunction add = machine.function("add");
  constexpr std::size_t kBytes = 16 * kMiB, kWords = kBytes / sizeof(unsigned);
  std::vector<CUdeviceptr> buffers(8);
  for (CUdeviceptr& buffer : buffers) CALL(cuMemAlloc(&buffer, kBytes));
  for (int round = 0; round < 6; ++round) {
    for (CUdeviceptr& buffer : buffers) {
      const Stream stream;
      std::size_t words = kWords;
      if (round == 0) {
        CALL(cuMemsetD32Async(buffer, 3, kWords, stream.handle));
      } else {
        launch(add, stream.handle, {&buffer, &words});
      }
      CUevent done = nullptr;
      CALL(cuEventCreate(&done, CU_EVENT_DISABLE_TIMING));
      CALL(cuEventRecord(done, stream.handle));
      CALL(cuStreamWaitEvent(CU_STREAM_LEGACY, done, 0));
      CALL(cuEventDestroy(done));
    }
    CALL(cuStreamSynchronize(CU_STREAM_LEGACY));
  }
  const Stream stream;
  for (const CUdeviceptr buffer : buffers) {
    const auto data = read(buffer, kWords, stream.handle);
    REQUIRE(std::ranges::all_of(data, [](unsigned word) { return word == 8; }));
  }
}

// What PyTorch's allocator functions do with the pool of a CUDA graph.
template <class F>
F* torch_function(const char* name) {
  void* found = dlsym(RTLD_DEFAULT, name);
  REQUIRE(found != nullptr);
  return reinterpret_cast<F*>(found);
}

CASE(blocks_of_a_graph_pool_serve_nobody_else) {
  using Id = std::pair<std::uint64_t, std::uint64_t>;
  const Machine machine;
  auto* alloc = torch_function<void*(ssize_t, int, CUstream)>("vmem_torch_alloc");
  auto* free = torch_function<void(void*, ssize_t, int, CUstream)>("vmem_torch_free");
  auto* begin = torch_function<void(int, Id, std::function<bool(CUstream)>)>("vmem_torch_begin_allocate_to_pool");
  auto* end = torch_function<void(int, Id)>("vmem_torch_end_allocate_to_pool");
  auto* release = torch_function<void(int, Id)>("vmem_torch_release_pool");
  auto* holds =
      torch_function<int(int, std::uint64_t, std::uint64_t, void* const*, std::size_t)>("vmem_torch_pool_holds");
  CUstream captured = nullptr, other = nullptr;
  CALL(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
  CALL(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  for (const ssize_t bytes : {ssize_t{1000}, ssize_t{4} << 20}) {
    const Id id{0, std::uint64_t(bytes)};
    begin(0, id, [&](CUstream stream) { return stream == captured; });
    void* inside = alloc(bytes, 0, captured);
    void* outside = alloc(bytes, 0, other);
    REQUIRE(holds(0, id.first, id.second, &inside, 1) == 1);
    REQUIRE(holds(0, id.first, id.second, &outside, 1) == 0);
    free(inside, bytes, 0, captured);
    REQUIRE(holds(0, id.first, id.second, nullptr, 0) == 1);
    REQUIRE(alloc(bytes, 0, captured) == inside);
    end(0, id);
    free(inside, bytes, 0, captured);
    void* later = alloc(bytes, 0, captured);
    REQUIRE(later != inside);
    free(later, bytes, 0, captured);
    // A second capture into the same pool.
    begin(0, id, nullptr);
    REQUIRE(alloc(bytes, 0, captured) == inside);
    end(0, id);
    release(0, id);
    free(inside, bytes, 0, captured);
    REQUIRE(holds(0, id.first, id.second, nullptr, 0) == 1);
    release(0, id);
    // Both serve again. (Small blocks come back in an order of their own.)
    void* first = alloc(bytes, 0, captured);
    void* second = alloc(bytes, 0, captured);
    const bool both = (first == inside && second == later) || (first == later && second == inside);
    REQUIRE(bytes == 1000 || both);
    for (void* each : {first, second}) free(each, bytes, 0, captured);
    free(outside, bytes, 0, other);
  }
}

}  // namespace
}  // namespace vmem::test
