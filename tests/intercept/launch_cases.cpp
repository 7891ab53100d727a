// How launches name memory, and how programs look up the launch function. The runs have 64 MiB of
// HBM.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "intercept/program.hpp"

namespace vmem::test {
namespace {

CASE(pointers_in_structs_and_in_extra) {
  const Machine machine;
  const CUfunction gather = machine.function("gather"), add = machine.function("add");
  Buffers buffers(12);
  Lists lists{2, 1024, {}, reinterpret_cast<unsigned*>(buffers.at[11])};
  for (int round = 0; round < 3; ++round) {
    lists.inputs[0] = reinterpret_cast<unsigned*>(buffers.at[std::size_t(round)]);
    lists.inputs[1] = reinterpret_cast<unsigned*>(buffers.at[std::size_t(round) + 4]);
    if (round != 0) launch(gather, buffers.stream, {&lists});  // in round 0 `extra` goes first
    std::size_t bytes = sizeof lists;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &lists, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    CALL(cuLaunchKernel(gather, 1, 1, 1, 1, 1, 1, 0, buffers.stream, nullptr, extra));
    if (round == 0) launch(gather, buffers.stream, {&lists});
    buffers.work(add);
  }
  // 11, plus in each round twice the sum of two inputs, which each round's work has incremented by
  // one, plus 1 for the work on this buffer.
  unsigned expected = 11;
  for (unsigned round = 0; round < 3; ++round) expected += 2 * (round + round + 4 + 2 * round) + 1;
  const auto data = read(buffers.at[11], 1024, buffers.stream);
  REQUIRE(std::ranges::all_of(data, [&](unsigned word) { return word == expected; }));
}

// Small allocations share pages, so they need not begin at a page boundary.
CASE(small_blocks_across_pages) {
  const Machine machine;
  const CUfunction add = machine.function("add");
  const Buffers buffers(0);
  constexpr std::size_t kSmall = 768 << 10;
  std::size_t words = kSmall / sizeof(unsigned), across = 0;
  for (int i = 0; i < 12; ++i) {
    CUdeviceptr block = 0;
    CALL(cuMemAllocAsync(&block, kSmall, buffers.stream));
    if (block / (2 * kMiB) == (block + kSmall - 1) / (2 * kMiB)) continue;
    ++across;
    launch(add, buffers.stream, {&block, &words});
  }
  CALL(cuStreamSynchronize(buffers.stream));
  REQUIRE(across > 0);
}

// A kernel reaches memory through a table that another thread filled. Strict mode exists to detect
// this.
CASE(reaches_what_it_does_not_name) {
  const Machine machine;
  const CUfunction fill = machine.function("fill"), follow = machine.function("follow");
  Buffers buffers(2);
  std::size_t count = 1, stride = kMiB;
  CUdeviceptr table = buffers.at[0] + kMiB;
  std::jthread([&] {
    CALL(cuCtxSetCurrent(machine.context));
    launch(fill, buffers.stream, {&table, &buffers.at[1], &stride, &count});
  }).join();
  launch(follow, buffers.stream, {&table, &count});
  REQUIRE(read(buffers.at[1], 1, buffers.stream)[0] == 2);
}

// A linked list through memory larger than HBM. Each launch names only the first node; nodes come
// and go.
CASE(a_list_that_nobody_can_follow) {
  const Machine machine;
  const CUfunction walk = machine.function("walk"), add = machine.function("add");
  CUstream stream = nullptr;
  CALL(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  std::vector<CUdeviceptr> nodes;
  CUdeviceptr small = 0;
  CALL(cuMemAllocAsync(&small, 256, stream));
  const auto link = [&](CUdeviceptr node, CUdeviceptr next, std::uint64_t count) {
    const Node contents{next, count};
    CALL(cuMemcpyHtoDAsync(node, &contents, sizeof contents, stream));
    CALL(cuStreamSynchronize(stream));
  };
  link(small, 0, 0);
  std::uint64_t walks = 0;
  std::vector<std::uint64_t> born;
  for (std::size_t i = 0; i < 12; ++i) {
    CUdeviceptr node = 0;
    CALL(cuMemAllocAsync(&node, kBytes, stream));
    link(node, nodes.empty() ? small : nodes.back(), 0);
    nodes.push_back(node);
    born.push_back(walks);
    for (int again = 0; again < 3; ++again, ++walks) launch(walk, stream, {&nodes.back()});
    if (i % 4 != 3) continue;
    // Frees the last node. A new allocation may reuse its address.
    CALL(cuMemFreeAsync(nodes.back(), stream));
    nodes.pop_back();
    born.pop_back();
    CUdeviceptr other = 0;
    std::size_t words = 4 * kWords;
    CALL(cuMemAllocAsync(&other, 4 * kBytes, stream));
    CALL(cuMemsetD32Async(other, 0, words, stream));
    launch(add, stream, {&other, &words});
    for (int again = 0; again < 3; ++again, ++walks) launch(walk, stream, {&nodes.back()});
    CALL(cuMemFreeAsync(other, stream));
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    Node contents{};
    CALL(cuMemcpyDtoHAsync(&contents, nodes[i], sizeof contents, stream));
    CALL(cuStreamSynchronize(stream));
    REQUIRE(contents.count == walks - born[i]);
    REQUIRE(contents.next == (i == 0 ? small : nodes[i - 1]));
  }
}

// A pointer in a variable of the kernel's module, in memory outside vmem, as cudaMemcpyToSymbol
// stores it.
CASE(pointers_in_a_kernels_variables) {
  const Machine machine;
  const CUfunction follow = machine.function("follow"), add = machine.function("add");
  Buffers buffers(10);
  CUdeviceptr variable = map_own(2 * kMiB), small = 0;
  CALL(cuMemAllocAsync(&small, 1024, buffers.stream));
  CALL(cuMemsetD32Async(small, 0, 256, buffers.stream));
  const std::array<CUdeviceptr, 2> pointers{buffers.at[0] + kMiB, small};
  CALL(cuMemcpyHtoDAsync(variable, pointers.data(), sizeof pointers, buffers.stream));
  std::size_t count = pointers.size();
  for (int round = 0; round < 5; ++round) {
    for (std::size_t i = 1; i < buffers.at.size(); ++i) {
      std::size_t words = kWords;
      launch(add, buffers.stream, {&buffers.at[i], &words});
    }
    launch(follow, buffers.stream, {&variable, &count});
  }
  REQUIRE(read(pointers[0], 1, buffers.stream)[0] == 5);
  REQUIRE(read(small, 1, buffers.stream)[0] == 5);
}

// The program unmaps its own memory too early.
CASE(fails_for_good) {
  const Machine machine;
  Buffers buffers(1);
  const CUfunction add = machine.function("add");
  buffers.work(add);
  const CUdeviceptr own = map_own(2 * kMiB);
  std::atomic<bool> unmapped{false};
  const auto wait = [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); };
  CALL(cuLaunchHostFunc(buffers.stream, wait, &unmapped));
  CALL(cuMemcpyDtoDAsync(own, own + kMiB, 1024, buffers.stream));
  CALL(cuMemUnmap(own, 2 * kMiB));
  unmapped = true;
  unmapped.notify_all();
  REQUIRE(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
}

template <class F>
bool allocates_ours(F* allocate) {
  CUdeviceptr pointer = 0;
  CALL(allocate(&pointer, 3 * kMiB));
  const bool is_ours = ours(pointer);
  CALL(cuMemFree(pointer));
  return is_ours;
}

// Every way to look up a driver function must return the hooks.
CASE(every_way_to_the_driver) {
  const Machine machine;
  using Allocate = CUresult(CUdeviceptr*, std::size_t);
  REQUIRE(allocates_ours(&cuMemAlloc));
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  REQUIRE(library != nullptr);
  REQUIRE(allocates_ours(reinterpret_cast<Allocate*>(dlsym(library, "cuMemAlloc_v2"))));
  REQUIRE(allocates_ours(reinterpret_cast<Allocate*>(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"))));
  using GetV2 = CUresult(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
  for (const char* get_name : {"cuGetProcAddress_v2"}) {
    auto* const get = reinterpret_cast<GetV2*>(dlsym(library, get_name));
    REQUIRE(get != nullptr);
    for (const int version : {12000, 13000}) {
      void* function = nullptr;
      CALL(get("cuMemAlloc", &function, version, CU_GET_PROC_ADDRESS_DEFAULT, nullptr));
      REQUIRE(allocates_ours(reinterpret_cast<Allocate*>(function)));
      void* again = nullptr;
      CALL(get("cuGetProcAddress", &again, version, CU_GET_PROC_ADDRESS_DEFAULT, nullptr));
      CALL(reinterpret_cast<GetV2*>(again)("cuMemAlloc", &function, version, CU_GET_PROC_ADDRESS_DEFAULT, nullptr));
      REQUIRE(allocates_ours(reinterpret_cast<Allocate*>(function)));
    }
  }
  // Functions without a hook are the driver's own, and other names are not affected.
  REQUIRE(dlsym(library, "cuDeviceGetCount") != nullptr);
  REQUIRE(dlsym(library, "cuNoSuchFunction") == nullptr);
  REQUIRE(dlsym(RTLD_NEXT, "malloc") != nullptr);
}

CASE(threads_and_their_streams) {
  const Machine machine;
  const CUfunction add = machine.function("add");
  const auto work = [&](unsigned seed) {
    CALL(cuCtxSetCurrent(machine.context));
    Buffers buffers(4);
    for (int round = 0; round < 8; ++round) buffers.work(add);
    for (std::size_t i = 0; i < buffers.at.size(); ++i) {
      const auto data = read(buffers.at[i], kWords, buffers.stream);
      REQUIRE(std::ranges::all_of(data, [&](unsigned word) { return word == i + 8; }));
      CALL(cuMemFreeAsync(buffers.at[i], buffers.stream));
    }
    if (seed % 2 == 0) CALL(cuStreamDestroy(buffers.stream));
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back(work, i);
}

}  // namespace
}  // namespace vmem::test
