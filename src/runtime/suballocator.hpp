// Small allocations share pages. Blocks of a size class are cut from slabs; each thread caches free blocks by (device, stream,
// class), so that malloc and free of a cached size touch nothing shared. Reuse is stream-ordered: a block freed on a stream
// serves the next malloc on that stream at once, and any other stream once the work queued before the free has completed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/status.hpp"
#include "vmem/vmem.h"

namespace vmem::runtime {

// A stream as an identity. The handles 0 and CU_STREAM_LEGACY mean one stream per context, CU_STREAM_PER_THREAD one per context
// and thread; other handles name a stream by themselves, and their context here is 0.
struct StreamId {
  vmem_stream handle = nullptr;  // never 0: the legacy stream is CU_STREAM_LEGACY
  std::uintptr_t context = 0;
  bool operator==(const StreamId&) const = default;
};

// What the suballocator stands on. Any thread calls it; it must not call back.
class SlabSource {
 public:
  virtual ~SlabSource() = default;
  // `bytes` (a multiple of 2 MiB) of address range with backing, on a device; the address is 2 MiB aligned. Rare; may block.
  virtual Result<std::uintptr_t> allocate_slabs(int device, std::size_t bytes) = 0;
  virtual Status free_slabs(std::uintptr_t address) = 0;
  // How much of a device's slabs may be kept while they are wholly free.
  virtual std::size_t spare_bytes(int /*device*/) const { return std::size_t{16} << 20; }
  // Which context's default streams the calling thread means: any number but the same for the same context. On the hit path
  // of the default streams, so it must be quick.
  virtual std::uintptr_t context() noexcept = 0;
  // A mark for "all work queued on the stream by now"; marks of one stream grow. The per-thread stream is only marked by its
  // own thread.
  virtual Result<std::uint64_t> mark(const StreamId& stream) = 0;
  // Whether the work behind a mark is complete. Must not block.
  virtual bool complete(std::uint64_t mark) = 0;
};

struct SmallBlock {
  std::uintptr_t base = 0;
  std::size_t bytes = 0;  // as asked for
  int device = 0;
};

// Every method may be called from any thread.
class Suballocator {
 public:
  static constexpr std::size_t kLargestBytes = std::size_t{1} << 20;  // larger allocations get pages of their own
  static constexpr int kMaxDevices = 256;

  // `space_base`, `space_bytes`: the address space, multiples of 2 MiB, for lookups by address without a lock.
  // Errors: ADDRESS_SPACE (no room for the tables).
  static Result<std::unique_ptr<Suballocator>> create(SlabSource& source, std::uintptr_t space_base,
                                                      std::size_t space_bytes);
  // Gives every slab back, with what is still live in it: no work may use it any more, and no call may be running.
  ~Suballocator();
  Suballocator(const Suballocator&) = delete;
  Suballocator& operator=(const Suballocator&) = delete;

  // 256-byte aligned. `bytes` in 1..kLargestBytes. Errors: INVALID_VALUE; those of the source.
  Result<std::uintptr_t> allocate(int device, std::size_t bytes, vmem_stream stream);
  Result<std::uintptr_t> allocate(int device, std::size_t bytes, const StreamId& stream);
  // Errors: INVALID_POINTER for foreign and interior addresses, blocks already free, addresses past a slab's last block: each
  // named. Of threads that free one block at the same time, one succeeds.
  Status free(std::uintptr_t address, vmem_stream stream);
  Status free(std::uintptr_t address, const StreamId& stream);
  // The live block that contains the address, or nothing. Lock-free.
  std::optional<SmallBlock> find(std::uintptr_t address) const noexcept;

  // The stream is about to end: what was freed on it waits for its work and then serves any stream. To be called while the
  // handle is valid, because a later stream may get the same handle. Errors: those of SlabSource::mark; then call it again.
  Status close_stream(vmem_stream stream);
  // Gives wholly free slabs back, other threads' caches included, except what other threads freed on CU_STREAM_PER_THREAD: only
  // they can mark it. Does not wait for work. Errors: those of SlabSource::free_slabs; the slabs are kept.
  Status trim();

  std::size_t live_bytes() const;      // as asked for; exact when no call is running
  std::size_t slab_bytes() const;      // what the source has given and not got back
  std::size_t metadata_bytes() const;  // memory of the allocator itself, thread caches included

 private:
  class Impl;
  explicit Suballocator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace vmem::runtime
