/// @file
/// Virtual GPU memory as a memory resource.
#ifndef VMEM_MEMORY_RESOURCE_HPP
#define VMEM_MEMORY_RESOURCE_HPP

#include <cstddef>
#include <string>

#include "vmem/vmem.hpp"

namespace vmem {
inline namespace v0 {

/// A memory resource in the forms that libraries use: allocate with the stream first and
/// allocate_sync; allocate_async; allocate(bytes, stream). A value: copies are the same
/// resource, and two are equal when they allocate on the same device.
///
/// Allocation gives address space only: the contract of vmem.h holds, so acquire an allocation for
/// the work that touches it.
///
/// All forms: `bytes` 0 gives nullptr; `alignment` is a power of two up to 256. Throw
/// vmem::bad_alloc when the tiers or the address space are full, vmem::error otherwise. The forms
/// without a stream are ordered on the legacy default stream.
class memory_resource {
 public:
  /// The alignment of every allocation in bytes: that of cudaMalloc.
  static constexpr std::size_t max_alignment = 256;

  /// On the device of that CUDA ordinal; unknown ones are refused when memory is allocated.
  explicit memory_resource(int device = 0) noexcept : device_(device) {}
  /// CUDA ordinal.
  int device() const noexcept { return device_; }

  /// `bytes` bytes whose first use is in the order of `stream`.
  void* allocate(stream_view stream, std::size_t bytes, std::size_t alignment = max_alignment) {
    if (alignment == 0 || alignment > max_alignment || (alignment & (alignment - 1)) != 0)
      throw error(VMEM_ERROR_INVALID_VALUE,
                  "alignment " + std::to_string(alignment) + ": a power of two up to 256 is what there is");
    if (bytes == 0) return nullptr;
    void* ptr = nullptr;
    const vmem_status status = vmem_malloc(&ptr, bytes, device_, stream.get());
    if (status == VMEM_ERROR_OUT_OF_MEMORY || status == VMEM_ERROR_ADDRESS_SPACE)
      throw bad_alloc(status, message_of(status));
    check(status);
    return ptr;
  }
  /// The memory is reused only after the work queued on `stream`. The last two are the bytes and
  /// the alignment of the allocation.
  void deallocate(stream_view stream, void* ptr, std::size_t = 0, std::size_t = 0) noexcept {
    vmem_free(ptr, stream.get());
  }
  /// The same, ordered on the legacy default stream.
  void* allocate_sync(std::size_t bytes, std::size_t alignment = max_alignment) {
    return allocate(stream_view{}, bytes, alignment);
  }
  /// The same, ordered on the legacy default stream.
  void deallocate_sync(void* ptr, std::size_t bytes = 0, std::size_t alignment = max_alignment) noexcept {
    deallocate(stream_view{}, ptr, bytes, alignment);
  }

  /// The form with the stream last.
  void* allocate(std::size_t bytes, stream_view stream) { return allocate(stream, bytes); }
  /// The form with the stream last.
  void deallocate(void* ptr, std::size_t bytes, stream_view stream) noexcept { deallocate(stream, ptr, bytes); }

  /// The form without `_sync` or with `_async`.
  void* allocate(std::size_t bytes, std::size_t alignment = max_alignment) { return allocate_sync(bytes, alignment); }
  /// The form without `_sync` or with `_async`.
  void deallocate(void* ptr, std::size_t bytes, std::size_t alignment = max_alignment) noexcept {
    deallocate_sync(ptr, bytes, alignment);
  }
  /// The form without `_sync` or with `_async`.
  void* allocate_async(std::size_t bytes, stream_view stream) { return allocate(stream, bytes); }
  /// The form without `_sync` or with `_async`.
  void* allocate_async(std::size_t bytes, std::size_t alignment, stream_view stream) {
    return allocate(stream, bytes, alignment);
  }
  /// The form without `_sync` or with `_async`.
  void deallocate_async(void* ptr, std::size_t bytes, stream_view stream) noexcept { deallocate(stream, ptr, bytes); }
  /// The form without `_sync` or with `_async`.
  void deallocate_async(void* ptr, std::size_t bytes, std::size_t alignment, stream_view stream) noexcept {
    deallocate(stream, ptr, bytes, alignment);
  }

  /// Whether both allocate on the same device.
  bool is_equal(const memory_resource& other) const noexcept { return *this == other; }
  friend bool operator==(const memory_resource&, const memory_resource&) noexcept = default;
// if <cuda/memory_resource> was included before
#if defined(_CUDA_MEMORY_RESOURCE)
  friend constexpr void get_property(const memory_resource&, ::cuda::mr::device_accessible) noexcept {}
#endif

 private:
  int device_;
};

}  // namespace v0
}  // namespace vmem

#endif
