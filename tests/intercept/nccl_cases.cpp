// Collectives, by a stand-in for NCCL: what it works on is named by its caller only.
#include <dlfcn.h>

#include <algorithm>
#include <array>

#include "intercept/program.hpp"

extern "C" {
int ncclAllReduce(const void* from, void* to, std::size_t count, int type, int operation, struct ncclComm*, CUstream);
int ncclGroupStart();
int ncclGroupEnd();
int ncclCommRegister(struct ncclComm*, void* buffer, std::size_t bytes, void** handle);
int ncclCommDeregister(struct ncclComm*, void* handle);
}

namespace vmem::test {
namespace {

constexpr std::size_t kBytes = 16 * kMiB, kWords = kBytes / sizeof(unsigned);

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

// Buffers larger than HBM together, each used after the others.
CASE(collectives_hold_their_buffers) {
  const Machine machine;
  const CUfunction add = machine.function("add");
  std::vector<CUdeviceptr> at(10);
  std::array<CUstream, 2> streams{};
  for (CUstream& stream : streams) CALL(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (CUdeviceptr& each : at) {
    CALL(cuMemAlloc(&each, kBytes));
    CALL(cuMemsetD32Async(each, 1, kWords, streams[0]));
  }
  auto* const looked_up = reinterpret_cast<decltype(&ncclAllReduce)>(dlsym(RTLD_DEFAULT, "ncclAllReduce"));
  std::vector<unsigned> expected(at.size(), 1);
  const auto reduce = [&](auto* function, std::size_t from, std::size_t to, CUstream stream) {
    REQUIRE(function(pointer(at[from]), pointer(at[to]), kWords, 0, 0, nullptr, stream) == 0);
    expected[to] += expected[from];
  };
  for (std::size_t round = 0; round < 4; ++round) {
    for (std::size_t i = 0; i < at.size(); ++i) {
      std::size_t words = kWords;
      launch(add, streams[0], {&at[i], &words});
      ++expected[i];
    }
    reduce(ncclAllReduce, 0, 9, streams[0]);
    reduce(looked_up, 1, 8, streams[0]);
    CALL(cuStreamSynchronize(streams[0]));
    REQUIRE(ncclGroupStart() == 0);
    reduce(ncclAllReduce, 2, 3, streams[0]);
    REQUIRE(ncclGroupStart() == 0);
    reduce(ncclAllReduce, 4, 5, streams[1]);
    REQUIRE(ncclGroupEnd() == 0);
    REQUIRE(ncclGroupEnd() == 0);
    for (CUstream stream : streams) CALL(cuStreamSynchronize(stream));
  }
  for (std::size_t i = 0; i < at.size(); ++i) {
    const auto data = read(at[i], kWords, streams[0]);
    REQUIRE(std::ranges::all_of(data, [&](unsigned word) { return word == expected[i]; }));
  }
}

CASE(registering_buffers_with_nccl) {
  const Machine machine;
  CUdeviceptr block = 0;
  CALL(cuMemAlloc(&block, kBytes));
  void* handle = &block;
  REQUIRE(ncclCommRegister(nullptr, pointer(block), kBytes, &handle) == 0);
  REQUIRE(handle == nullptr);
  REQUIRE(ncclCommDeregister(nullptr, handle) == 0);
  REQUIRE(ncclCommRegister(nullptr, &block, sizeof block, &handle) == 0);
  REQUIRE(handle == &block);
  REQUIRE(ncclCommDeregister(nullptr, handle) == 0);
}

}  // namespace
}  // namespace vmem::test
