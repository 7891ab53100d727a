// Programs compiled for per-thread default streams: here, every call without a stream uses the
// thread's own.
#define CUDA_API_PER_THREAD_DEFAULT_STREAM
#include <algorithm>
#include <atomic>
#include <thread>

#include "intercept/program.hpp"

namespace vmem::test {
namespace {

CASE(threads_and_their_default_streams) {
  const Machine machine;
  const CUfunction add = machine.function("add");
  const auto work = [&](unsigned seed) {
    CALL(cuCtxSetCurrent(machine.context));
    std::vector<CUdeviceptr> buffers(5);
    for (CUdeviceptr& buffer : buffers) {
      CALL(cuMemAllocAsync(&buffer, kBytes, nullptr));
      REQUIRE(ours(buffer));
      CALL(cuMemsetD32Async(buffer, seed, kWords, nullptr));
    }
    std::size_t words = kWords;
    for (int round = 0; round < 4; ++round) {
      for (CUdeviceptr& buffer : buffers) {
        void* parameters[] = {&buffer, &words};
        CALL(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
      }
    }
    std::vector<unsigned> data(kWords);
    for (const CUdeviceptr buffer : buffers) {
      CALL(cuMemcpyDtoHAsync(data.data(), buffer, kBytes, nullptr));
      CALL(cuStreamSynchronize(nullptr));
      REQUIRE(std::ranges::all_of(data, [&](unsigned word) { return word == seed + 4; }));
      CALL(cuMemFreeAsync(buffer, nullptr));
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back(work, i);
}

// One thread's default stream waits while the other's proceeds.
CASE(default_streams_do_not_wait_for_each_other) {
  const Machine machine;
  const CUfunction add = machine.function("add");
  std::size_t words = kWords;
  void* gate = nullptr;
  CALL(cuMemHostAlloc(&gate, 4096, 0));
  *static_cast<unsigned*>(gate) = 0;
  CUdeviceptr here = 0, there = 0;
  unsigned long long id_here = 0, id_there = 0;
  const auto begin = [&](CUdeviceptr& buffer, unsigned long long& id) {
    CALL(cuStreamGetId(nullptr, &id));
    CALL(cuMemAllocAsync(&buffer, kBytes, nullptr));
    CALL(cuMemsetD32Async(buffer, 1, kWords, nullptr));
  };
  const auto launch_add = [&](CUdeviceptr buffer) {
    void* parameters[] = {&buffer, &words};
    CALL(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
  };
  begin(here, id_here);
  CALL(cuStreamWaitValue32(nullptr, reinterpret_cast<CUdeviceptr>(gate), 1, CU_STREAM_WAIT_VALUE_GEQ));
  launch_add(here);
  std::jthread([&] {
    CALL(cuCtxSetCurrent(machine.context));
    begin(there, id_there);
    REQUIRE(id_here != id_there);
    launch_add(there);
    CALL(cuStreamSynchronize(nullptr));
    CALL(cuStreamQuery(nullptr));
  }).join();
  REQUIRE(cuStreamQuery(nullptr) == CUDA_ERROR_NOT_READY);
  std::atomic_ref(*static_cast<unsigned*>(gate)).store(1);
  CALL(cuStreamSynchronize(nullptr));
  for (const CUdeviceptr buffer : {here, there}) {
    const auto data = read(buffer, kWords, CU_STREAM_PER_THREAD);
    REQUIRE(std::ranges::all_of(data, [](unsigned word) { return word == 2; }));
  }
  CALL(cuMemFreeHost(gate));
}

}  // namespace
}  // namespace vmem::test
