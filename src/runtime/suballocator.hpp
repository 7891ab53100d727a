// Small allocations share pages. Blocks of a size class are cut from slabs. Each thread caches free
// blocks by (device, stream, class), so malloc and free of a cached size touch no shared state.
// Reuse is stream-ordered: a block freed on a stream serves that stream's next malloc at once. It
// serves any other stream once the work queued before the free is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/status.hpp"
#include "vmem/vmem.h"

namespace vmem::runtime {

// The identity of a stream. The handles 0 and CU_STREAM_LEGACY mean one stream per context,
// CU_STREAM_PER_THREAD one per context and thread. Any other handle identifies a stream by itself;
// then `context` is 0.
struct StreamId {
  vmem_stream handle = nullptr;  // never 0: the legacy stream is CU_STREAM_LEGACY
  std::uintptr_t context = 0;
  bool operator==(const StreamId&) const = default;
};

// Tells when queued work is complete. Any thread.
class StreamMarks {
 public:
  virtual ~StreamMarks() = default;
  // A number for the context whose default streams the calling thread means; the same for the same
  // context. Must be fast: on the hit path of the default streams.
  virtual std::uintptr_t context() noexcept = 0;
  // A mark for all work queued on the stream by now. Marks of one stream grow. Only its own thread
  // marks the per-thread stream.
  virtual Result<std::uint64_t> mark(const StreamId& stream) = 0;
  // Whether the work before the mark is complete. Must not block.
  virtual bool complete(std::uint64_t mark) = 0;
};

// Where slabs come from. Any thread calls it; it must not call back.
class SlabSource {
 public:
  virtual ~SlabSource() = default;
  // `bytes` (a multiple of 2 MiB) of backed address range on a device, aligned to 2 MiB. Rare; may
  // block.
  virtual Result<std::uintptr_t> allocate_slabs(int device, std::size_t bytes) = 0;
  virtual Status free_slabs(std::uintptr_t address) = 0;
  // Maximal bytes of a device's wholly free slabs to keep.
  virtual std::size_t spare_bytes(int device) const = 0;
};

struct SmallBlock {
  std::uintptr_t base = 0;
  std::size_t bytes = 0;  // as requested
  int device = 0;
};

// Every method may be called from any thread.
class Suballocator {
 public:
  // Larger allocations have their own pages.
  static constexpr std::size_t kLargestBytes = std::size_t{1} << 20;
  static constexpr int kMaxDevices = 256;

  // `space_base`, `space_bytes`: the address space, in multiples of 2 MiB, for lock-free lookup by
  // address. Errors: ADDRESS_SPACE (no room for the tables).
  static Result<std::unique_ptr<Suballocator>> create(SlabSource& source, StreamMarks& marks, std::uintptr_t space_base,
                                                      std::size_t space_bytes);
  // Gives every slab back, live blocks included. REQUIRES: no work uses them and no call is
  // running.
  ~Suballocator();
  Suballocator(const Suballocator&) = delete;
  Suballocator& operator=(const Suballocator&) = delete;

  // 256-byte aligned. `bytes` in 1..kLargestBytes. Errors: INVALID_VALUE; those of the source.
  Result<std::uintptr_t> allocate(int device, std::size_t bytes, vmem_stream stream);
  Result<std::uintptr_t> allocate(int device, std::size_t bytes, const StreamId& stream);
  // Errors: INVALID_POINTER, with its reason, for foreign and interior addresses, free blocks, and
  // addresses past a slab's last block. If several threads free one block at once, one succeeds.
  Status free(std::uintptr_t address, vmem_stream stream);
  Status free(std::uintptr_t address, const StreamId& stream);
  // The live block that contains the address, if any. Lock-free.
  std::optional<SmallBlock> find(std::uintptr_t address) const noexcept;

  // The stream is about to end: blocks freed on it wait for its work, then serve any stream. Call
  // while the handle is valid, since a later stream may get the same handle. Errors: those of
  // StreamMarks::mark; then call again.
  Status close_stream(vmem_stream stream);
  // Gives wholly free slabs back, with blocks from other threads' caches, except blocks that other
  // threads freed on CU_STREAM_PER_THREAD: only they can mark it. Does not wait for work. Errors:
  // those of SlabSource::free_slabs; then the slabs are kept.
  Status trim();

  std::size_t live_bytes() const;      // as requested; exact when no call is running
  std::size_t slab_bytes() const;      // obtained from the source and not given back
  std::size_t metadata_bytes() const;  // of the allocator itself, thread caches included

 private:
  class Impl;
  explicit Suballocator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace vmem::runtime
