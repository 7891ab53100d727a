// Objects other than memory that programs hold by handle: arrays, textures, memory pools.
#pragma once

#include <cstdint>
#include <memory>

#include "gpu/emu/cuda_api.hpp"

namespace vmem::emu {

class Context;

// Bytes per element; 0 for formats that the emulation does not support in arrays and textures.
std::size_t element_bytes(CUarray_format format, unsigned channels);

// A CUDA array: rows in the heap of its context. Only the copies know its address.
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

// A pool has no memory of its own: all pools of a device share the device's heap.
struct Pool {
  int device = 0;
  bool is_default = false;
};

}  // namespace vmem::emu
