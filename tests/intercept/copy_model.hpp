// Memory of each kind with its expected contents, for cases that copy and fill. The runs have
// 64 MiB of HBM, less than this memory.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "intercept/program.hpp"

namespace vmem::test {

inline std::vector<std::byte> noise(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> made((bytes + 7) / 8 * 8);
  std::mt19937_64 random(seed);
  for (std::size_t at = 0; at < made.size(); at += 8) {
    const std::uint64_t word = random() & 0x7fffffffffffffff;  // never an address of vmem
    std::memcpy(&made[at], &word, 8);
  }
  made.resize(bytes);
  return made;
}

enum class Kind { device, pageable, pinned };

// Memory of one kind, and its expected contents.
class Memory {
 public:
  Memory(Kind kind, std::size_t bytes, unsigned seed) : kind_(kind), model_(noise(bytes, seed)) {
    if (kind == Kind::device) {
      CALL(cuMemAlloc(&address_, bytes));
      REQUIRE(ours(address_));
      CALL(cuMemcpyHtoD(address_, model_.data(), bytes));
      return;
    }
    if (kind == Kind::pinned) {
      void* memory = nullptr;
      CALL(cuMemAllocHost(&memory, bytes));
      address_ = reinterpret_cast<CUdeviceptr>(memory);
    } else {
      pageable_.resize(bytes);
      address_ = reinterpret_cast<CUdeviceptr>(pageable_.data());
    }
    std::ranges::copy(model_, static_cast<std::byte*>(host()));
  }
  ~Memory() {
    if (kind_ == Kind::device) CALL(cuMemFree(address_));
    if (kind_ == Kind::pinned) CALL(cuMemFreeHost(host()));
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  bool on_device() const { return kind_ == Kind::device; }
  CUdeviceptr address() const { return address_; }
  void* host() const { return reinterpret_cast<void*>(address_); }
  std::span<std::byte> model() { return model_; }

  // Compares [from, from + bytes), or all.
  bool as_expected(std::size_t from, std::size_t bytes) const {
    const std::span expected(&model_[from], bytes);
    if (!on_device()) return std::memcmp(static_cast<std::byte*>(host()) + from, expected.data(), bytes) == 0;
    std::vector<std::byte> found(bytes);
    CALL(cuMemcpyDtoH(found.data(), address_ + from, bytes));
    return std::ranges::equal(found, expected);
  }
  bool as_expected() const { return as_expected(0, model_.size()); }

 private:
  Kind kind_;
  CUdeviceptr address_ = 0;
  std::vector<std::byte> pageable_;
  std::vector<std::byte> model_;
};

constexpr std::size_t kHuge = 96 * kMiB, kLarge = 16 * kMiB;

// One allocation larger than HBM, four smaller ones, and host memory of both kinds.
struct World {
  Machine machine;
  Stream stream;
  std::vector<std::unique_ptr<Memory>> device;
  Memory pageable{Kind::pageable, kLarge, 1};
  Memory pinned{Kind::pinned, kLarge, 2};
  unsigned turn = 0;
  // Number of copies: each reads from a new offset, so that its bytes are not at the target yet.
  std::size_t copies = 0;

  World() {
    device.push_back(std::make_unique<Memory>(Kind::device, kHuge, 3));
    for (unsigned i = 0; i < 4; ++i) device.push_back(std::make_unique<Memory>(Kind::device, kLarge, 4 + i));
  }
  // Another allocation each time, sometimes the one that does not fit in HBM.
  Memory& next_device() { return *device[turn++ % device.size()]; }
  void require_all(const char* after) {
    for (const auto& each : device) require(each->as_expected(), after);
    require(pageable.as_expected() && pinned.as_expected(), after);
  }
  static void require(bool holds, const char* after) {
    if (!holds) std::fprintf(stderr, "wrong bytes after %s\n", after);
    REQUIRE(holds);
  }
};

// Rows of `width` bytes, in slices of a layout that has more rows than are copied.
struct Shape {
  std::size_t width, rows, slices;
};
struct Layout {
  std::size_t pitch, height, x, y, z;
  std::size_t offset(std::size_t row, std::size_t slice) const { return ((z + slice) * height + y + row) * pitch + x; }
};

inline void copy_model(Memory& to, const Layout& target, Memory& from, const Layout& source, const Shape& shape) {
  for (std::size_t slice = 0; slice < shape.slices; ++slice) {
    for (std::size_t row = 0; row < shape.rows; ++row)
      std::memcpy(&to.model()[target.offset(row, slice)], &from.model()[source.offset(row, slice)], shape.width);
  }
}

template <class Parameters>
void describe(Parameters& p, const Memory& to, const Layout& target, const Memory& from, const Layout& source,
              const Shape& shape, bool unified) {
  const auto type = [&](const Memory& side) {
    if (unified) return CU_MEMORYTYPE_UNIFIED;
    return side.on_device() ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  };
  p.srcMemoryType = type(from);
  p.dstMemoryType = type(to);
  if (p.srcMemoryType == CU_MEMORYTYPE_HOST) {
    p.srcHost = from.host();
  } else {
    p.srcDevice = from.address();
  }
  if (p.dstMemoryType == CU_MEMORYTYPE_HOST) {
    p.dstHost = to.host();
  } else {
    p.dstDevice = to.address();
  }
  p.srcXInBytes = source.x;
  p.srcY = source.y;
  p.srcPitch = source.pitch;
  p.dstXInBytes = target.x;
  p.dstY = target.y;
  p.dstPitch = target.pitch;
  p.WidthInBytes = shape.width;
  p.Height = shape.rows;
}

}  // namespace vmem::test
