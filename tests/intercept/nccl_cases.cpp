// Collectives of a stand-in for NCCL: only the caller's arguments name their memory.
#include <dlfcn.h>

#include <algorithm>
#include <array>

#include "intercept/nccl_user.hpp"
#include "intercept/program.hpp"

namespace vmem::test {
namespace {

int a_communicator = 0;
auto* const communicator = reinterpret_cast<struct ncclComm*>(&a_communicator);

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

// `flags`: how NCCL itself is loaded.
const NcclUser& load_nccl(int flags) {
  REQUIRE(dlopen("libnccl.so.2", RTLD_NOW | flags) != nullptr);
  void* user = dlopen("libnccl_user.so", RTLD_NOW | RTLD_LOCAL);
  REQUIRE(user != nullptr);
  return *reinterpret_cast<const NcclUser* (*)()>(dlsym(user, "nccl_user"))();
}

// Buffers larger than HBM together, used one after the other.
void collectives(int flags) {
  const NcclUser& nccl = load_nccl(flags);
  const Machine machine;
  const CUfunction add = machine.function("add");
  std::vector<CUdeviceptr> at(10);
  std::array<CUstream, 2> streams{};
  for (CUstream& stream : streams) CALL(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (CUdeviceptr& each : at) {
    CALL(cuMemAlloc(&each, kBytes));
    CALL(cuMemsetD32Async(each, 1, kWords, streams[0]));
  }
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
  auto* const looked_up = reinterpret_cast<decltype(&ncclAllReduce)>(dlsym(library, "ncclAllReduce"));
  std::vector<unsigned> expected(at.size(), 1);
  const auto reduce = [&](auto* function, std::size_t from, std::size_t to, CUstream stream) {
    REQUIRE(function(pointer(at[from]), pointer(at[to]), kWords, 0, 0, communicator, stream) == 0);
    expected[to] += expected[from];
  };
  for (std::size_t round = 0; round < 4; ++round) {
    for (std::size_t i = 0; i < at.size(); ++i) {
      std::size_t words = kWords;
      launch(add, streams[0], {&at[i], &words});
      ++expected[i];
    }
    reduce(nccl.all_reduce, 0, 9, streams[0]);
    reduce(looked_up, 1, 8, streams[0]);
    CALL(cuStreamSynchronize(streams[0]));
    REQUIRE(nccl.group_start() == 0);
    reduce(nccl.all_reduce, 2, 3, streams[0]);
    REQUIRE(nccl.group_start() == 0);
    reduce(nccl.all_reduce, 4, 5, streams[1]);
    REQUIRE(nccl.group_end() == 0);
    REQUIRE(nccl.group_end() == 0);
    for (CUstream stream : streams) CALL(cuStreamSynchronize(stream));
  }
  for (std::size_t i = 0; i < at.size(); ++i) {
    const auto data = read(at[i], kWords, streams[0]);
    REQUIRE(std::ranges::all_of(data, [&](unsigned word) { return word == expected[i]; }));
  }
}

CASE(collectives_hold_their_buffers) { collectives(RTLD_GLOBAL); }
CASE(collectives_of_a_private_nccl) { collectives(RTLD_LOCAL); }

// More than HBM and host memory hold at once: the collective that does not fit is refused, and with
// it its group, of which nothing runs. What comes after is served.
CASE(collectives_that_do_not_fit) {
  const NcclUser& nccl = load_nccl(RTLD_LOCAL);
  const Machine machine;
  const Buffers buffers(10);
  const auto reduce = [&](std::size_t from, std::size_t to) {
    return nccl.all_reduce(pointer(buffers.at[from]), pointer(buffers.at[to]), kWords, 0, 0, communicator,
                           buffers.stream) == 0;
  };
  std::size_t refused = 0;
  const std::string said = said_by([&] {
    REQUIRE(nccl.group_start() == 0);
    REQUIRE(reduce(0, 1));
    for (std::size_t from = 2; from < buffers.at.size(); from += 2) refused += reduce(from, from + 1) ? 0 : 1;
    REQUIRE(nccl.group_end() != 0);
    CALL(cuStreamSynchronize(buffers.stream));
  });
  REQUIRE(refused != 0);
  REQUIRE(said.contains("a collective"));
  REQUIRE(nccl.group_start() == 0);
  REQUIRE(reduce(4, 5));
  REQUIRE(nccl.group_end() == 0);
  REQUIRE(reduce(6, 7));
  constexpr std::array<unsigned, 10> expected{0, 1, 2, 3, 4, 4 + 5, 6, 6 + 7, 8, 9};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto data = read(buffers.at[i], kWords, buffers.stream);
    REQUIRE(std::ranges::all_of(data, [&](unsigned word) { return word == expected[i]; }));
  }
}

CASE(registering_buffers_with_nccl) {
  const NcclUser& nccl = load_nccl(RTLD_LOCAL);
  const Machine machine;
  CUdeviceptr block = 0;
  CALL(cuMemAlloc(&block, kBytes));
  void* handle = &block;
  REQUIRE(nccl.comm_register(nullptr, pointer(block), kBytes, &handle) == 0);
  REQUIRE(handle == nullptr);
  REQUIRE(nccl.comm_deregister(nullptr, handle) == 0);
  REQUIRE(nccl.comm_register(nullptr, &block, sizeof block, &handle) == 0);
  REQUIRE(handle == &block);
  REQUIRE(nccl.comm_deregister(nullptr, handle) == 0);
}

}  // namespace
}  // namespace vmem::test
