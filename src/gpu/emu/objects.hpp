// What programs hold by handle besides memory: arrays, textures, memory pools.
#pragma once

#include <cstdint>
#include <memory>

#include "gpu/emu/cuda_api.hpp"

namespace vmem::emu {

class Context;

// Bytes of one element; 0 for formats that arrays and textures do not have here.
std::size_t element_bytes(CUarray_format format, unsigned channels);

// A CUDA array lies in the heap of its context, row after row: nobody but the copies knows where.
struct Array {
  std::shared_ptr<Context> context;
  CUDA_ARRAY_DESCRIPTOR descriptor{};
  std::uint64_t memory = 0;

  bool two_dimensional() const { return descriptor.Height != 0; }
  std::size_t element() const { return element_bytes(descriptor.Format, descriptor.NumChannels); }
  std::size_t row_bytes() const { return descriptor.Width * element(); }
  std::size_t rows() const { return two_dimensional() ? descriptor.Height : 1; }
};

struct Texture {
  std::shared_ptr<Context> context;
  CUDA_RESOURCE_DESC resource{};
};

// What a pool has is the memory of its device's heap, which is one for all pools.
struct Pool {
  int device = 0;
  bool is_default = false;
};

}  // namespace vmem::emu
