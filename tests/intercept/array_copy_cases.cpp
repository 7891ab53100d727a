// Copies to and from arrays, and copies that are refused, on more memory than fits in HBM. The runs
// have 64 MiB of HBM.
#include <array>
#include <cstring>
#include <functional>
#include <utility>

#include "intercept/copy_model.hpp"

namespace vmem::test {
namespace {

CUarray make_array(std::size_t width, std::size_t height) {
  CUDA_ARRAY_DESCRIPTOR descriptor{};
  descriptor.Width = width;
  descriptor.Height = height;
  descriptor.Format = CU_AD_FORMAT_UNSIGNED_INT32;
  descriptor.NumChannels = 1;
  CUarray made = nullptr;
  CALL(cuArrayCreate(&made, &descriptor));
  return made;
}

// Copies to arrays and back. If the linear side does not fit in HBM, the copy is refused and no
// data is lost.
CASE(copies_with_arrays) {
  World world;
  constexpr std::size_t kWidth = 600, kRows = 400, kLine = 16 << 10, kOffset = 256;
  const CUarray rows = make_array(kWidth, kRows), line = make_array(kLine, 0);
  const Layout layout{4608, 0, 40, 7, 0};
  const Shape shape{kWidth * 4, kRows, 1};
  const auto to_array = [&](const Memory& from) {
    CUDA_MEMCPY2D parameters{};
    describe(parameters, from, layout, from, layout, shape, false);
    parameters.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    parameters.dstArray = rows;
    parameters.dstXInBytes = parameters.dstY = 0;
    return parameters;
  };
  const auto from_array = [&](const Memory& to) {
    CUDA_MEMCPY2D parameters{};
    describe(parameters, to, layout, to, layout, shape, false);
    parameters.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    parameters.srcArray = rows;
    parameters.srcXInBytes = parameters.srcY = 0;
    return parameters;
  };
  for (std::size_t round = 0; round < 8; ++round) {
    Memory& from = *world.device[1 + round % 4];
    Memory& to = *world.device[1 + (round + 1) % 4];
    const auto in = to_array(from), out = from_array(to);
    if (round % 2 == 0) {
      CALL(cuMemcpy2D(&in));
      CALL(cuMemcpy2D(&out));
    } else {
      CALL(cuMemcpy2DAsync(&in, world.stream.handle));
      CALL(cuMemcpy2DAsync(&out, world.stream.handle));
      CALL(cuStreamSynchronize(world.stream.handle));
    }
    copy_model(to, layout, from, layout, shape);
    World::require(to.as_expected(0, 4 * kMiB), "copies with an array of rows");
    const std::size_t at = 2 * kMiB - 5000 * (round + 1), bytes = (kLine - kOffset) * 4;
    CALL(cuMemcpyDtoA(line, kOffset * 4, from.address() + at, bytes));
    CALL(cuMemcpyAtoD(to.address() + at, line, kOffset * 4, bytes));
    std::memcpy(&to.model()[at], &from.model()[at], bytes);
    World::require(to.as_expected(0, 4 * kMiB), "copies with an array");
  }
  const Memory& huge = *world.device[0];
  const auto in = to_array(huge), out = from_array(huge);
  const std::string said = said_by([&] {
    REQUIRE(cuMemcpy2D(&in) == CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(cuMemcpy2DAsync(&out, world.stream.handle) == CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(cuMemcpyDtoA(line, 0, huge.address(), 4096) == CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(cuMemcpyAtoD(huge.address(), line, 0, 4096) == CUDA_ERROR_NOT_SUPPORTED);
  });
  REQUIRE(said.contains("CUDA array while HBM is full"));
  REQUIRE(cuMemcpyDtoA(line, 0, world.device[1]->address(), kLine * 4 + 4) == CUDA_ERROR_INVALID_VALUE);
  CALL(cuArrayDestroy(line));
  CALL(cuArrayDestroy(rows));
  world.require_all("copies with arrays");
}

// Copies that vmem does not support are refused as a whole, with a message. Copies without memory
// of vmem go to the driver.
CASE(copies_that_are_refused) {
  World world;
  const auto operand = [](CUdeviceptr address) {
    CUmemcpy3DOperand made{};
    made.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    made.op.ptr.ptr = address;
    return made;
  };
  const auto operation = [&](CUdeviceptr to, CUdeviceptr from) {
    CUDA_MEMCPY3D_BATCH_OP made{};
    made.dst = operand(to);
    made.src = operand(from);
    made.extent = {512, 16, 4};
    made.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    return made;
  };
  constexpr std::size_t kBytes = 512 * 16 * 4;
  std::array operations{operation(world.pinned.address(), world.pinned.address() + kMiB),
                        operation(world.device[1]->address(), world.pinned.address()),
                        operation(world.pinned.address(), world.device[2]->address())};
  CUDA_MEMCPY3D_PEER peer{};
  describe(peer, *world.device[1], {512, 16, 0, 0, 0}, *world.device[2], {512, 16, 0, 0, 0}, {512, 16, 1}, false);
  peer.srcHeight = peer.dstHeight = 16;
  peer.Depth = 4;
  peer.srcContext = peer.dstContext = world.machine.context;
  std::string said = said_by([&] {
    REQUIRE(cuMemcpy3DBatchAsync(3, operations.data(), 0, world.stream.handle) == CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(cuMemcpy3DPeer(&peer) == CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(cuMemcpy3DPeerAsync(&peer, world.stream.handle) == CUDA_ERROR_NOT_SUPPORTED);
  });
  REQUIRE(said.contains("a batch of three-dimensional copies"));
  REQUIRE(said.contains("a three-dimensional copy between devices"));
  CALL(cuStreamSynchronize(world.stream.handle));
  world.require_all("refused copies");

  // The driver's own memory.
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemoryPool pool = nullptr;
  CALL(cuMemPoolCreate(&pool, &properties));
  CUdeviceptr theirs = 0;
  CALL(cuMemAllocFromPoolAsync(&theirs, 2 * kBytes, pool, world.stream.handle));
  REQUIRE(!ours(theirs));
  std::array passed{operation(theirs, world.pinned.address())};
  CALL(cuMemcpy3DBatchAsync(1, passed.data(), 0, world.stream.handle));
  peer.srcDevice = theirs;
  peer.dstDevice = theirs + kBytes;
  CALL(cuMemcpy3DPeerAsync(&peer, world.stream.handle));
  CALL(cuStreamSynchronize(world.stream.handle));
  CALL(cuMemcpy3DPeer(&peer));
  std::vector<std::byte> back(kBytes);
  CALL(cuMemcpyDtoH(back.data(), theirs + kBytes, kBytes));
  REQUIRE(std::memcmp(back.data(), world.pinned.host(), kBytes) == 0);
  CALL(cuMemFreeAsync(theirs, world.stream.handle));
  CALL(cuMemPoolDestroy(pool));
}

}  // namespace
}  // namespace vmem::test
