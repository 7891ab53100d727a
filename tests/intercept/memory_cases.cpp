// Memory as an unmodified program sees it. The runs have 64 MiB of HBM.
#include <dlfcn.h>
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <utility>

#include "gpu/emu/emu.h"
#include "intercept/program.hpp"

namespace vmem::test {
namespace {

// Uses four times the size of HBM, several times over.
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

// Freed memory is reused in stream order, and its old bytes do not overwrite new ones.
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
  // The program can go on.
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

// Reports the GPU's own memory until vmem runs, then the memory that vmem can hold.
CASE(total_memory_before_and_after_the_start) {
  CALL(cuInit(0));
  std::size_t before = 0, after = 0, free_bytes = 0, total = 0;
  CALL(cuDeviceTotalMem(&before, 0));
  REQUIRE(before == 512 * kMiB);
  const Machine machine;
  CALL(cuMemGetInfo(&free_bytes, &total));
  CALL(cuDeviceTotalMem(&after, machine.device));
  REQUIRE(after == total && after != before);
  REQUIRE(cuDeviceTotalMem(nullptr, machine.device) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuDeviceTotalMem(&after, 7) == CUDA_ERROR_INVALID_DEVICE);
}

// Pitched memory of more than HBM: each row starts where the pitch says.
CASE(pitched_memory) {
  const Machine machine;
  const Stream stream;
  constexpr std::size_t kWidth = 5000, kRows = 3000;
  std::vector<CUdeviceptr> buffers(6);
  std::size_t pitch = 0;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    CALL(cuMemAllocPitch(&buffers[i], &pitch, kWidth, kRows, 4));
    REQUIRE(ours(buffers[i]) && pitch >= kWidth && pitch % 512 == 0);
    CALL(cuMemsetD2D8(buffers[i], pitch, 0xee, pitch, kRows));
    CALL(cuMemsetD2D32(buffers[i], pitch, unsigned(i), kWidth / 4, kRows));
    std::size_t range = 0;
    CALL(cuMemGetAddressRange(nullptr, &range, buffers[i] + pitch * kRows - 1));
    REQUIRE(range >= pitch * kRows);
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const auto words = read(buffers[i], pitch * kRows / 4, stream.handle);
    for (std::size_t at = 0; at < words.size(); ++at)
      REQUIRE(words[at] == (at % (pitch / 4) < kWidth / 4 ? i : 0xeeeeeeee));
  }
  for (const CUdeviceptr buffer : buffers) CALL(cuMemFree(buffer));
  CUdeviceptr none = 0;
  REQUIRE(cuMemAllocPitch(&none, &pitch, kWidth, kRows, 3) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemAllocPitch(&none, &pitch, 0, kRows, 4) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemAllocPitch(&none, &pitch, kWidth, 0, 4) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemAllocPitch(&none, nullptr, kWidth, kRows, 4) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemAllocPitch(nullptr, &pitch, kWidth, kRows, 4) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemAllocPitch(&none, &pitch, SIZE_MAX - 10, 2, 4) == CUDA_ERROR_INVALID_VALUE);
}

CUmemoryPool make_pool() {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemoryPool pool = nullptr;
  CALL(cuMemPoolCreate(&pool, &properties));
  return pool;
}

// Allocations from the device's default pool are vmem's. Other pools have properties of their own
// and stay with the driver.
CASE(memory_from_pools) {
  const Machine machine;
  const Stream stream;
  const CUfunction add = machine.function("add");
  constexpr std::size_t kBytes = 16 * kMiB, kWords = kBytes / sizeof(unsigned);
  CUmemoryPool own = nullptr;
  CALL(cuDeviceGetDefaultMemPool(&own, machine.device));
  const CUmemoryPool other = make_pool();
  std::vector<CUdeviceptr> buffers(10);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const bool from_own = i < 8;
    CALL(cuMemAllocFromPoolAsync(&buffers[i], kBytes, from_own ? own : other, stream.handle));
    REQUIRE(ours(buffers[i]) == from_own);
    CALL(cuMemsetD32Async(buffers[i], unsigned(10 * i), kWords, stream.handle));
  }
  std::size_t words = kWords;
  for (int round = 0; round < 3; ++round) {
    for (CUdeviceptr& buffer : buffers) launch(add, stream.handle, {&buffer, &words});
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const auto data = read(buffers[i], kWords, stream.handle);
    REQUIRE(std::ranges::all_of(data, [&](unsigned word) { return word == 10 * i + 3; }));
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) CALL(cuMemFreeAsync(buffers[i], stream.handle));
  for (const CUdeviceptr gone : {buffers[0], buffers[9]})
    REQUIRE(cuMemFreeAsync(gone, stream.handle) == CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr none = 0;
  REQUIRE(cuMemAllocFromPoolAsync(&none, 0, own, stream.handle) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemAllocFromPoolAsync(nullptr, kBytes, own, stream.handle) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemPoolDestroy(own) == CUDA_ERROR_INVALID_VALUE);
  CALL(cuMemPoolDestroy(other));
  REQUIRE(cuMemAllocFromPoolAsync(&none, kBytes, other, stream.handle) == CUDA_ERROR_INVALID_VALUE);
}

// The range around a pointer, for vmem's and the driver's memory.
CASE(ranges_around_pointers) {
  const Machine machine;
  const Stream stream;
  CUdeviceptr large = 0, small = 0, theirs = 0, base = 0;
  CALL(cuMemAlloc(&large, 5 * kMiB));
  CALL(cuMemAlloc(&small, 1000));
  const CUmemoryPool pool = make_pool();
  CALL(cuMemAllocFromPoolAsync(&theirs, 3 * kMiB, pool, stream.handle));
  REQUIRE(!ours(theirs));
  std::size_t bytes = 0;
  for (const auto& [pointer, wanted] : {std::pair{large, 5 * kMiB}, {small, std::size_t{1000}}, {theirs, 3 * kMiB}}) {
    CALL(cuMemGetAddressRange(&base, &bytes, pointer + wanted - 1));
    REQUIRE(base == pointer && bytes >= wanted);
    CALL(cuMemGetAddressRange(&base, nullptr, pointer));
    CALL(cuMemGetAddressRange(nullptr, &bytes, pointer));
    std::array asked{CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                     CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,   CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                     CU_POINTER_ATTRIBUTE_CONTEXT,          CU_POINTER_ATTRIBUTE_HOST_POINTER,
                     CU_POINTER_ATTRIBUTE_DEVICE_POINTER,   CU_POINTER_ATTRIBUTE_IS_MANAGED};
    CUdeviceptr start = 1, device_pointer = 1;
    std::size_t range = 1;
    int ordinal = 77;
    unsigned type = 77, managed = 77;
    CUcontext context = nullptr;
    void* host = &context;
    std::array<void*, 8> answers{&start, &range, &ordinal, &type, &context, &host, &device_pointer, &managed};
    CALL(cuPointerGetAttributes(unsigned(asked.size()), asked.data(), answers.data(), pointer + 100));
    REQUIRE(start == pointer && range == bytes && ordinal == 0 && type == CU_MEMORYTYPE_DEVICE);
    REQUIRE(context == machine.context && host == nullptr && device_pointer == pointer + 100 && managed == 0);
    REQUIRE(cuPointerGetAttributes(1, nullptr, answers.data(), pointer) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuPointerGetAttributes(1, asked.data(), nullptr, pointer) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, pointer) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cuPointerGetAttribute(nullptr, CU_POINTER_ATTRIBUTE_CONTEXT, pointer) == CUDA_ERROR_INVALID_VALUE);
  }
  CALL(cuMemFreeAsync(theirs, stream.handle));
  CALL(cuStreamSynchronize(stream.handle));
  // Addresses without an allocation, or with a freed one.
  for (const CUdeviceptr nothing : {large + 512 * kMiB, theirs}) {
    REQUIRE(cuMemGetAddressRange(&base, &bytes, nothing) == CUDA_ERROR_NOT_FOUND);
    std::array asked{CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                     CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    unsigned type = 77;
    int ordinal = 77;
    std::size_t range = 77;
    std::array<void*, 3> answers{&type, &ordinal, &range};
    CALL(cuPointerGetAttributes(3, asked.data(), answers.data(), nothing));
    REQUIRE(type == 0 && ordinal == CU_DEVICE_INVALID && range == 0);
  }
  CALL(cuMemPoolDestroy(pool));
  CALL(cuMemFree(small));
  CALL(cuMemFree(large));
}

// Fills are synchronous calls that do not wait, unless the program asks for it.
CASE(synchronous_fills_where_asked) {
  const Machine machine;
  const CUfunction add = machine.function("add");
  std::vector<CUdeviceptr> buffers(6);
  std::size_t words = 4 * kMiB;
  for (CUdeviceptr& buffer : buffers) CALL(cuMemAlloc(&buffer, 4 * words));
  unsigned on = 1;
  REQUIRE(cuPointerSetAttribute(nullptr, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, buffers[0]) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_IS_MANAGED, buffers[0]) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, buffers[0] + 512 * kMiB) ==
          CUDA_ERROR_INVALID_VALUE);
  for (const CUdeviceptr buffer : buffers) CALL(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, buffer));
  for (CUdeviceptr& buffer : buffers) {
    launch(add, nullptr, {&buffer, &words});
    CALL(cuMemsetD32(buffer, 5, words));
    CALL(cuStreamQuery(CU_STREAM_LEGACY));
    launch(add, nullptr, {&buffer, &words});
    CALL(cuMemsetD2D16(buffer, 4096, 7, 10, 3));
    CALL(cuStreamQuery(CU_STREAM_LEGACY));
  }
  for (const CUdeviceptr buffer : buffers) {
    const auto data = read(buffer, 2048, nullptr);
    REQUIRE(data[0] == 0x70007 && data[5] == 6 && data[1024] == 0x70007 && data[2047] == 6);
  }
}

// Memory that cannot be shared with another process, device or library, because its pages move. The
// call fails with a message, and no data is lost.
CASE(memory_that_cannot_leave) {
  const Machine machine;
  const Stream stream;
  constexpr std::size_t kBytes = 16 * kMiB, kWords = kBytes / sizeof(unsigned);
  std::vector<CUdeviceptr> buffers(6);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    CALL(cuMemAlloc(&buffers[i], kBytes));
    CALL(cuMemsetD32Async(buffers[i], unsigned(i), kWords, stream.handle));
  }
  CUipcMemHandle ipc{};
  CUmemGenericAllocationHandle handle = 0;
  int fd = -1;
  for (const CUdeviceptr buffer : buffers) {
    auto* const pointer = reinterpret_cast<void*>(buffer);
    const std::string said = said_by([&] {
      REQUIRE(cuIpcGetMemHandle(&ipc, buffer) == CUDA_ERROR_NOT_SUPPORTED);
      REQUIRE(cuMemRetainAllocationHandle(&handle, pointer) == CUDA_ERROR_NOT_SUPPORTED);
      REQUIRE(cuMemGetHandleForAddressRange(&fd, buffer, kBytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) ==
              CUDA_ERROR_NOT_SUPPORTED);
    });
    for (const char* call : {"cuIpcGetMemHandle", "cuMemRetainAllocationHandle", "cuMemGetHandleForAddressRange"})
      REQUIRE(said.contains(std::string(call) + ": memory that vmem moves cannot be handed out"));
    REQUIRE(fd == -1 && handle == 0);
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const auto data = read(buffers[i], kWords, stream.handle);
    REQUIRE(std::ranges::all_of(data, [&](unsigned word) { return word == i; }));
    CALL(cuMemFree(buffers[i]));
  }

  // The driver's own memory can still be exported.
  const CUmemoryPool pool = make_pool();
  CUdeviceptr theirs = 0;
  CALL(cuMemAllocFromPoolAsync(&theirs, 2 * kMiB, pool, stream.handle));
  CALL(cuIpcGetMemHandle(&ipc, theirs));
  CALL(cuMemFreeAsync(theirs, stream.handle));
  CALL(cuMemPoolDestroy(pool));
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle created = 0;
  CUdeviceptr mapped = 0;
  CALL(cuMemCreate(&created, 2 * kMiB, &properties, 0));
  CALL(cuMemAddressReserve(&mapped, 2 * kMiB, 0, 0, 0));
  CALL(cuMemMap(mapped, 2 * kMiB, 0, created, 0));
  CALL(cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(mapped + 100)));
  REQUIRE(handle == created);
  REQUIRE(cuMemGetHandleForAddressRange(&fd, mapped + 1, 4096, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) ==
          CUDA_ERROR_INVALID_VALUE);
  CALL(cuMemRelease(handle));
  CALL(cuMemRelease(created));
  REQUIRE(cuMemRelease(created) == CUDA_ERROR_INVALID_VALUE);
  CALL(cuMemUnmap(mapped, 2 * kMiB));
  REQUIRE(cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(mapped)) == CUDA_ERROR_INVALID_VALUE);
  CALL(cuMemAddressFree(mapped, 2 * kMiB));
}

// Pointer tables in pinned memory are searched as long as the memory exists. Afterwards its
// addresses are ordinary words.
CASE(pinned_memory_comes_and_goes) {
  const Machine machine;
  const Stream stream;
  const CUfunction follow = machine.function("follow"), fill = machine.function("fill"), add = machine.function("add");
  std::size_t words = 4 * kMiB, count = 1, stride = 0;
  std::vector<CUdeviceptr> buffers(6);
  for (CUdeviceptr& buffer : buffers) {
    CALL(cuMemAlloc(&buffer, 4 * words));
    CALL(cuMemsetD32(buffer, 0, words));
  }
  CUdeviceptr result = 0;
  CALL(cuMemAlloc(&result, 4096));
  const auto from = [](unsigned round, void** memory) {
    if (round % 3 == 0) return cuMemAllocHost(memory, kMiB);
    return cuMemHostAlloc(memory, kMiB, round % 3 == 1 ? CU_MEMHOSTALLOC_PORTABLE : CU_MEMHOSTALLOC_DEVICEMAP);
  };
  for (unsigned round = 0; round < 12; ++round) {
    void* memory = nullptr;
    CALL(from(round, &memory));
    auto* table = static_cast<CUdeviceptr*>(memory);
    table[0] = buffers[round % buffers.size()];
    for (CUdeviceptr& buffer : buffers) launch(add, stream.handle, {&buffer, &words});
    launch(follow, stream.handle, {&table, &count});
    CALL(cuStreamSynchronize(stream.handle));
    CALL(cuMemFreeHost(memory));
    // Only a value from here on: a search at that address would find nothing.
    launch(fill, stream.handle, {&result, &memory, &stride, &count});
  }
  for (const CUdeviceptr buffer : buffers) REQUIRE(read(buffer, 1, stream.handle)[0] == 12 + 2);
  REQUIRE(cuMemFreeHost(&words) == CUDA_ERROR_INVALID_VALUE);
}

// Uses are tracked although the stream they were queued on was destroyed.
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

// The calls of PyTorch's allocator for the pool of a CUDA graph.
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
    // Both are reused. (Small blocks return in an order of their own.)
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
