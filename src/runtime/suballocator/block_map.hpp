// Maps addresses to slabs and blocks. Two tables cover the address space. One entry per 2 MiB
// granule names its slab; one word per 256 bytes tells whether a live block starts there. Both are
// in host memory, because the CPU must not touch the blocks.
//
// The words belong to addresses, not to slabs: if a free is delayed while its slab is replaced, the
// free affects only the block at its own address. Only the words of slabs have memory: 16 KiB per 2
// MiB.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/status.hpp"
#include "runtime/suballocator.hpp"
#include "runtime/suballocator/size_classes.hpp"

namespace vmem::runtime {

struct Slab;

// One entry of the granule table, packed into 32 bits.
struct Placement {
  std::uint32_t bits = 0;
  static constexpr std::uint32_t kNoClass = 127;  // a spare slab

  static Placement of(int device, std::uint32_t size_class, std::uint32_t position) noexcept {
    return {1u << 31 | position << 16 | std::uint32_t(device) << 8 | size_class};
  }
  bool in_slab() const noexcept { return bits != 0; }
  int device() const noexcept { return int(bits >> 8 & 255); }
  std::uint32_t size_class() const noexcept { return bits & 127; }
  std::uint32_t position() const noexcept { return bits >> 16 & 15; }  // of the granule in its slab
};
static_assert(Suballocator::kMaxDevices <= 256 && kClasses < Placement::kNoClass && kMostGranules <= 16);

class BlockMap {
 public:
  BlockMap(std::uintptr_t base, std::size_t bytes) : base_(base), bytes_(bytes) {}
  ~BlockMap();
  BlockMap(const BlockMap&) = delete;
  BlockMap& operator=(const BlockMap&) = delete;
  // Errors: ADDRESS_SPACE.
  Status reserve_tables();

  // Any thread, lock-free.
  Placement placement(std::uintptr_t address) const noexcept {
    if (address - base_ >= bytes_) return {};
    return {granules_[granule(address)].placement.load(std::memory_order_acquire)};
  }
  // REQUIRES: the calling thread owns the block at `address`, which is not live.
  void set_live(std::uintptr_t address, std::uint32_t excess_bytes) noexcept {
    words_[unit(address)].store(std::uint16_t(kLive | excess_bytes), std::memory_order_release);
  }
  // Takes the live block that starts at `address` for the calling thread, and returns its excess;
  // -1 if no live block starts there. REQUIRES: a multiple of 256 once in a slab.
  std::int32_t claim(std::uintptr_t address) noexcept {
    const std::uint16_t word = words_[unit(address)].exchange(0, std::memory_order_acq_rel);
    return (word & kLive) != 0 ? word & kMostExcessBytes : -1;
  }
  std::optional<SmallBlock> find(std::uintptr_t address) const noexcept;
  // The reason that no live block starts at the address.
  Error explain(std::uintptr_t address) const;

  // Only for the slab's owner: the pool or a depot. Errors: OUT_OF_MEMORY.
  Status add(Slab& slab);
  void place(const Slab& slab, std::uint32_t size_class) noexcept;
  void remove(const Slab& slab) noexcept;
  // REQUIRES: the caller owns a block there.
  Slab& slab_at(std::uintptr_t address) const noexcept { return *granules_[granule(address)].slab; }

  bool contains(std::uintptr_t address, std::size_t bytes) const noexcept {
    return address - base_ < bytes_ && bytes <= bytes_ - (address - base_);
  }
  std::size_t table_bytes(std::uint32_t granules) const noexcept;

 private:
  static constexpr std::uint16_t kLive = 0x8000;
  static_assert(kMostExcessBytes < kLive);
  struct Granule {
    std::atomic<std::uint32_t> placement;
    Slab* slab;
  };
  struct Span {
    std::uintptr_t begin = 0, end = 0;
  };
  std::size_t granule(std::uintptr_t address) const noexcept { return (address - base_) / kGranuleBytes; }
  std::size_t unit(std::uintptr_t address) const noexcept { return (address - base_) / kUnitBytes; }
  Span words_of(const Slab& slab) const noexcept;

  const std::uintptr_t base_;
  const std::size_t bytes_;
  // Constant after reserve_tables().
  Granule* granules_ = nullptr;
  std::atomic<std::uint16_t>* words_ = nullptr;
};

}  // namespace vmem::runtime
