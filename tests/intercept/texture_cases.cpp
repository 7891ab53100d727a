// Textures over memory that vmem pages. The runs have 64 MiB of HBM.
#include <algorithm>
#include <array>
#include <vector>

#include "gpu/emu/emu.h"
#include "intercept/program.hpp"

namespace vmem::test {
namespace {

// Adds a texture's words to a buffer. No parameter names the texture's memory.
void add_texture(const vmem_emu_launch* launch) {
  auto* const out = *static_cast<unsigned**>(launch->params[0]);
  const auto texture = *static_cast<CUtexObject*>(launch->params[1]);
  CUDA_RESOURCE_DESC resource{};
  CALL(cuTexObjectGetResourceDesc(&resource, texture));
  const auto* const in = reinterpret_cast<const unsigned*>(resource.res.linear.devPtr);
  for (std::size_t i = 0; i < kMiB; ++i) out[i] += in[i];
}

// Memory under a texture stays resident, whatever else is paged.
CASE(textures_keep_their_memory) {
  const std::array<std::size_t, 2> bytes{8, 8};
  REQUIRE(vmem_emu_register_kernel("add_texture", add_texture, bytes.data(), 2) == 0);
  const Machine machine;
  const Stream stream;
  const CUfunction add = machine.function("add"), show = machine.function("add_texture");
  constexpr std::size_t kBytes = 16 * kMiB, kWords = kBytes / sizeof(unsigned);
  CUdeviceptr linear = 0, rows = 0, out = 0;
  CALL(cuMemAlloc(&linear, 4 * kMiB));
  CALL(cuMemAlloc(&rows, 4 * kMiB));
  CALL(cuMemAlloc(&out, 4 * kMiB));
  CALL(cuMemsetD32(linear, 3, kMiB));
  CALL(cuMemsetD32(rows, 40, kMiB));
  CALL(cuMemsetD32(out, 0, kMiB));
  CUDA_RESOURCE_DESC resource{};
  const CUDA_TEXTURE_DESC sampling{};
  std::array<CUtexObject, 2> textures{};
  resource.resType = CU_RESOURCE_TYPE_LINEAR;
  resource.res.linear = {linear, CU_AD_FORMAT_UNSIGNED_INT32, 1, 4 * kMiB};
  CALL(cuTexObjectCreate(&textures[0], &resource, &sampling, nullptr));
  resource.res.linear.devPtr += 4;
  REQUIRE(cuTexObjectCreate(&textures[1], &resource, &sampling, nullptr) == CUDA_ERROR_INVALID_VALUE);
  resource = {};
  resource.resType = CU_RESOURCE_TYPE_PITCH2D;
  resource.res.pitch2D = {rows, CU_AD_FORMAT_UNSIGNED_INT32, 1, 1024, 1024, 4096};
  CALL(cuTexObjectCreate(&textures[1], &resource, &sampling, nullptr));
  REQUIRE(cuTexObjectCreate(&textures[1], nullptr, &sampling, nullptr) == CUDA_ERROR_INVALID_VALUE);
  std::vector<CUdeviceptr> buffers(8);
  for (CUdeviceptr& buffer : buffers) {
    CALL(cuMemAlloc(&buffer, kBytes));
    CALL(cuMemsetD32(buffer, 0, kWords));
  }
  std::size_t words = kWords;
  for (int round = 0; round < 4; ++round) {
    for (CUdeviceptr& buffer : buffers) launch(add, stream.handle, {&buffer, &words});
    for (CUtexObject& texture : textures) launch(show, stream.handle, {&out, &texture});
  }
  const auto shown = read(out, kMiB, stream.handle);
  REQUIRE(std::ranges::all_of(shown, [](unsigned word) { return word == 4 * 43; }));
  for (const CUdeviceptr buffer : buffers) REQUIRE(read(buffer, 1, stream.handle)[0] == 4);
  for (const CUtexObject texture : textures) CALL(cuTexObjectDestroy(texture));
  REQUIRE(cuTexObjectDestroy(textures[0]) == CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace vmem::test
