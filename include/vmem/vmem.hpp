// vmem for C++20: RAII and exceptions over vmem.h, header-only. The contract, and what each call does, is written there.
//
//     vmem::session session({{"hbm", "4GiB"}});          // start; ends with the scope
//     vmem::buffer<float> x(1 << 30), y(1 << 30);        // 4 GiB each
//     {
//       vmem::hold h(stream, vmem::read(x), vmem::read_write(y));
//       saxpy<<<grid, block, 0, stream>>>(x.size(), 2.0f, x.data(), y.data());
//     }                                                  // released: pages may move when the kernel is done
//
// Sizes are bytes, except where an element type gives another unit. Devices are CUDA ordinals. Every function may throw
// vmem::error unless it is noexcept; a call that throws has changed nothing.
#ifndef VMEM_VMEM_HPP
#define VMEM_VMEM_HPP

#if __cplusplus < 202002L
#error "vmem/vmem.hpp needs C++20 (-std=c++20); vmem/vmem.h needs C only"
#endif

#include <array>
#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "vmem/vmem.h"

namespace vmem {
inline namespace v0 {

// ---- errors --------------------------------------------------------------------------------------------------------

// A failed call: what() is vmem_last_error(), or the status in words where the library has nothing to add.
class error : public std::runtime_error {
 public:
  error(vmem_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  vmem_status status() const noexcept { return status_; }

 private:
  vmem_status status_;
};

// What memory_resource throws for lack of memory, because containers and RMM catch std::bad_alloc.
class bad_alloc : public std::bad_alloc {
 public:
  bad_alloc(vmem_status status, const std::string& message)
      : status_(status), message_(std::make_shared<const std::string>(message)) {}
  const char* what() const noexcept override { return message_->c_str(); }
  vmem_status status() const noexcept { return status_; }

 private:
  vmem_status status_;
  std::shared_ptr<const std::string> message_;  // copying an exception must not throw
};

// The calling thread's last failure in words, or the status' own.
inline std::string message_of(vmem_status status) {
  const char* words = vmem_last_error();
  return *words != '\0' ? words : vmem_status_string(status);
}

// Throws vmem::error unless the status is VMEM_OK.
inline void check(vmem_status status) {
  if (status != VMEM_OK) throw error(status, message_of(status));
}

// ---- streams -------------------------------------------------------------------------------------------------------

// A CUDA stream, not owned: made from CUstream or cudaStream_t, from what converts to one (rmm::cuda_stream_view), or from
// what has get() (cuda::stream_ref). The default is the legacy default stream.
class stream_view {
 public:
  constexpr stream_view() noexcept = default;
  template <class S>
    requires std::convertible_to<const S&, vmem_stream>
  constexpr stream_view(const S& stream) noexcept : stream_(static_cast<vmem_stream>(stream)) {}
  template <class S>
    requires(!std::convertible_to<const S&, vmem_stream> && !std::same_as<S, stream_view> &&
             requires(const S& s) {
               { s.get() } -> std::convertible_to<vmem_stream>;
             })
  constexpr stream_view(const S& stream) noexcept : stream_(stream.get()) {}

  constexpr vmem_stream get() const noexcept { return stream_; }
  friend constexpr bool operator==(stream_view, stream_view) noexcept = default;

 private:
  vmem_stream stream_ = nullptr;
};

// The stream will be destroyed or not be used with vmem again; call it before the stream is destroyed.
inline void close(stream_view stream) { check(vmem_stream_close(stream.get())); }

// ---- start and end -------------------------------------------------------------------------------------------------

// {"hbm", "4GiB"}: a name as listed by `vmem options`, and its value.
using option = vmem_option;

// Starts the runtime. Options not named come from the environment (VMEM_HBM), then from their defaults.
inline void init(std::span<const option> options) { check(vmem_init(options.data(), options.size())); }
inline void init(std::initializer_list<option> options = {}) { check(vmem_init(options.begin(), options.size())); }

// Waits for queued work, frees what is still allocated and ends the runtime. Throws IN_USE while ranges are held.
inline void shutdown() { check(vmem_shutdown()); }

// init and shutdown as a scope. Buffers and holds end before it: declare it first.
class session {
 public:
  session() { init(); }
  explicit session(std::initializer_list<option> options) { init(options); }
  explicit session(std::span<const option> options) { init(options); }
  session(const session&) = delete;
  session& operator=(const session&) = delete;
  ~session() { vmem_shutdown(); }
};

// "MAJOR.MINOR.PATCH" of the library.
inline const char* version() noexcept { return vmem_version(); }

// ---- memory --------------------------------------------------------------------------------------------------------

// Owns `size()` elements of virtual GPU memory, 256-byte aligned, contents undefined. Move-only. Without an element type
// it counts bytes: vmem::buffer raw(1 << 20). The destructor frees in order of the buffer's stream; it frees nothing
// while a range is still held, so a hold ends before its buffers.
template <class T = std::byte>
class buffer {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>, "elements are moved as bytes");

 public:
  using value_type = T;

  buffer() noexcept = default;  // empty
  // Throws OUT_OF_MEMORY when the tiers together cannot back it, ADDRESS_SPACE, INVALID_VALUE (unknown device). A `size`
  // of 0 makes an empty buffer.
  explicit buffer(std::size_t size, int device = 0, stream_view stream = {})
      : size_(size), device_(device), stream_(stream) {
    if (size == 0) return;
    if (size > static_cast<std::size_t>(-1) / sizeof(T))
      throw error(VMEM_ERROR_INVALID_VALUE,
                  "buffer of " + std::to_string(size) + " elements: more bytes than addresses");
    void* allocated = nullptr;
    check(vmem_malloc(&allocated, bytes(), device, stream.get()));
    data_ = static_cast<T*>(allocated);
  }
  buffer(buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        device_(other.device_),
        stream_(other.stream_) {}
  buffer& operator=(buffer&& other) noexcept {
    buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~buffer() { vmem_free(data_, stream_.get()); }

  void swap(buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(device_, other.device_);
    std::swap(stream_, other.stream_);
  }

  // Device pointers: for kernels, between acquire and release. The CPU must not dereference them.
  T* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  std::size_t bytes() const noexcept { return size_ * sizeof(T); }
  bool empty() const noexcept { return size_ == 0; }
  int device() const noexcept { return device_; }

  // The stream in whose order the memory is freed.
  stream_view stream() const noexcept { return stream_; }
  void set_stream(stream_view stream) noexcept { stream_ = stream; }

  // Frees now. Throws IN_USE, and keeps the memory, while a range of it is held.
  void reset() {
    check(vmem_free(data_, stream_.get()));
    data_ = nullptr;
    size_ = 0;
  }
  // Gives up ownership: the caller frees the pointer with vmem_free.
  [[nodiscard]] T* release() noexcept {
    size_ = 0;
    return std::exchange(data_, nullptr);
  }

  // Copies elements between host memory and [first, first + host.size()), where the pages lie, and returns when it is
  // done. Throws INVALID_RANGE when that leaves the buffer, IN_USE (store into a range that is held).
  void load(std::span<T> host, std::size_t first = 0) const {
    if (!host.empty()) check(vmem_read(host.data(), at(first, host.size()), host.size_bytes()));
  }
  void store(std::span<const T> host, std::size_t first = 0) {
    if (!host.empty()) check(vmem_write(at(first, host.size()), host.data(), host.size_bytes()));
  }

 private:
  T* at(std::size_t first, std::size_t count) const {
    if (first > size_ || count > size_ - first)
      throw error(VMEM_ERROR_INVALID_RANGE, "elements " + std::to_string(first) + " to " +
                                                std::to_string(first + count) + " of a buffer of " +
                                                std::to_string(size_));
    return data_ + first;
  }

  T* data_ = nullptr;
  std::size_t size_ = 0;
  int device_ = 0;
  stream_view stream_;
};

// A range of bytes of a file as read-only GPU memory: its pages are read from the file when they are used. Move-only. Without an
// element type it counts bytes. The destructor ends the mapping in order of its stream; it ends nothing while a range is
// still held. The file must stay as it is: otherwise what is read later is lost.
template <class T = std::byte>
class mapped_file {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>, "elements are read as bytes");

 public:
  using value_type = T;

  mapped_file() noexcept = default;  // empty
  // Elements from byte `offset`, as many as there are whole ones if `size` is 0. Throws INVALID_VALUE (no such file, no
  // regular one, nothing there, or `offset` is no multiple of T's alignment), INVALID_RANGE, OUT_OF_MEMORY, ADDRESS_SPACE,
  // UNSUPPORTED.
  explicit mapped_file(const char* path, std::uint64_t offset = 0, std::size_t size = 0, int device = 0,
                       stream_view stream = {})
      : stream_(stream) {
    if (offset % alignof(T) != 0)
      throw error(VMEM_ERROR_INVALID_VALUE, "elements from byte " + std::to_string(offset) + " of " + path +
                                                " would not be aligned to " + std::to_string(alignof(T)));
    if (size > static_cast<std::size_t>(-1) / sizeof(T))
      throw error(VMEM_ERROR_INVALID_RANGE,
                  std::to_string(size) + " elements of " + path + ": more bytes than addresses");
    void* mapped = nullptr;
    check(vmem_map_file(&mapped, path, offset, std::uint64_t{size} * sizeof(T), device));
    data_ = static_cast<const T*>(mapped);
    vmem_pointer_info info;
    if (const vmem_status asked = vmem_query(mapped, &info); asked != VMEM_OK) {
      vmem_free(mapped, stream_.get());
      check(asked);
    }
    size_ = info.bytes / sizeof(T);
  }
  mapped_file(mapped_file&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), stream_(other.stream_) {}
  mapped_file& operator=(mapped_file&& other) noexcept {
    mapped_file(std::move(other)).swap(*this);
    return *this;
  }
  ~mapped_file() { vmem_free(const_cast<T*>(data_), stream_.get()); }

  void swap(mapped_file& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(stream_, other.stream_);
  }

  // A device pointer: for kernels, between acquire and release. The CPU must not dereference it.
  const T* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  std::size_t bytes() const noexcept { return size_ * sizeof(T); }
  bool empty() const noexcept { return size_ == 0; }

  // Ends the mapping now. Throws IN_USE, and keeps it, while a range of it is held.
  void reset() {
    check(vmem_free(const_cast<T*>(data_), stream_.get()));
    data_ = nullptr;
    size_ = 0;
  }

  // Copies elements [first, first + host.size()) to host memory. Throws INVALID_RANGE, LOST.
  void load(std::span<T> host, std::size_t first = 0) const {
    if (first > size_ || host.size() > size_ - first)
      throw error(VMEM_ERROR_INVALID_RANGE, "elements " + std::to_string(first) + " to " +
                                                std::to_string(first + host.size()) + " of a mapping of " +
                                                std::to_string(size_));
    if (!host.empty()) check(vmem_read(host.data(), data_ + first, host.size_bytes()));
  }

 private:
  const T* data_ = nullptr;
  std::size_t size_ = 0;
  stream_view stream_;
};

// ---- use by GPU work -----------------------------------------------------------------------------------------------

// Ranges for hold, acquire and release, from a pointer and bytes. write keeps what is not written; discard promises that
// every byte is written before it is read, so that old contents need not be fetched.
inline vmem_range range(const void* ptr, std::size_t bytes, unsigned access) noexcept {
  return {const_cast<void*>(ptr), bytes, access, 0};
}
inline vmem_range read(const void* ptr, std::size_t bytes) noexcept { return range(ptr, bytes, VMEM_READ); }
inline vmem_range write(void* ptr, std::size_t bytes) noexcept { return range(ptr, bytes, VMEM_WRITE); }
inline vmem_range read_write(void* ptr, std::size_t bytes) noexcept { return range(ptr, bytes, VMEM_READ_WRITE); }
inline vmem_range discard(void* ptr, std::size_t bytes) noexcept {
  return range(ptr, bytes, VMEM_WRITE | VMEM_DISCARD);
}

// The same for whole buffers.
template <class T>
vmem_range read(const buffer<T>& b) noexcept {
  return read(b.data(), b.bytes());
}
template <class T>
vmem_range read(const mapped_file<T>& m) noexcept {
  return read(m.data(), m.bytes());
}
template <class T>
vmem_range write(buffer<T>& b) noexcept {
  return write(b.data(), b.bytes());
}
template <class T>
vmem_range read_write(buffer<T>& b) noexcept {
  return read_write(b.data(), b.bytes());
}
template <class T>
vmem_range discard(buffer<T>& b) noexcept {
  return discard(b.data(), b.bytes());
}

// Makes ranges usable by work queued on `stream` from now on; all or nothing. Throws LOST, OUT_OF_MEMORY, UNSUPPORTED
// (capturing stream), INVALID_POINTER, INVALID_RANGE.
inline void acquire(stream_view stream, std::span<const vmem_range> ranges) {
  check(vmem_acquire(ranges.data(), ranges.size(), stream.get()));
}
// Everything queued on `stream` so far is the last use of the ranges, which this thread acquired. Throws NOT_ACQUIRED.
inline void release(stream_view stream, std::span<const vmem_range> ranges) {
  check(vmem_release(ranges.data(), ranges.size(), stream.get()));
}

// Acquires N ranges and releases them at the end of the scope, in the same thread. Allocates nothing.
template <std::size_t N>
class [[nodiscard]] hold {
 public:
  template <std::convertible_to<vmem_range>... R>
    requires(sizeof...(R) == N && N > 0)
  explicit hold(stream_view stream, const R&... ranges) : stream_(stream), ranges_{ranges...} {
    acquire(stream_, ranges_);
    held_ = true;
  }
  hold(const hold&) = delete;
  hold& operator=(const hold&) = delete;
  ~hold() {
    if (held_) vmem_release(ranges_.data(), N, stream_.get());
  }

  // Releases before the end of the scope.
  void release() {
    if (!std::exchange(held_, false)) return;
    v0::release(stream_, ranges_);
  }

 private:
  stream_view stream_;
  std::array<vmem_range, N> ranges_;
  bool held_ = false;
};
template <class S, class... R>
hold(const S&, const R&...) -> hold<sizeof...(R)>;

// ---- hints, copies and figures -------------------------------------------------------------------------------------

// Asks for a range to be in HBM soon; returns at once. Never fails for lack of space.
inline void prefetch(const void* ptr, std::size_t bytes) { check(vmem_prefetch(ptr, bytes)); }
template <class T>
void prefetch(const buffer<T>& b) {
  if (!b.empty()) prefetch(b.data(), b.bytes());
}
template <class T>
void prefetch(const mapped_file<T>& m) {
  if (!m.empty()) prefetch(m.data(), m.bytes());
}

// Advice for the pages a range touches. Throws OUT_OF_MEMORY (VMEM_ADVISE_PIN beyond the budget), UNSUPPORTED.
inline void advise(const void* ptr, std::size_t bytes, vmem_advice advice) { check(vmem_advise(ptr, bytes, advice)); }
template <class T>
void advise(const buffer<T>& b, vmem_advice advice) {
  if (!b.empty()) advise(b.data(), b.bytes(), advice);
}

// In stream order, with pages acquired and released on the way; each side of a copy is vmem memory or any pointer CUDA
// accepts, and may be larger than HBM. Throws INVALID_VALUE for ranges that overlap.
inline void memcpy(void* dst, const void* src, std::size_t bytes, stream_view stream = {}) {
  check(vmem_memcpy(dst, src, bytes, stream.get()));
}
inline void memset(void* ptr, int value, std::size_t bytes, stream_view stream = {}) {
  check(vmem_memset(ptr, value, bytes, stream.get()));
}

// Copies between host and vmem memory without using HBM; return when done. buffer::load and store are the typed ones.
inline void read(void* host_dst, const void* src, std::size_t bytes) { check(vmem_read(host_dst, src, bytes)); }
inline void write(void* dst, const void* host_src, std::size_t bytes) { check(vmem_write(dst, host_src, bytes)); }

// Where the pages of the allocation that holds `ptr` are now; a snapshot.
inline vmem_pointer_info query(const void* ptr) {
  vmem_pointer_info info{};
  check(vmem_query(ptr, &info));
  return info;
}
template <class T>
vmem_pointer_info query(const buffer<T>& b) {
  return query(b.data());
}

// The runtime's budgets and counters since init.
inline vmem_statistics stats() {
  vmem_statistics statistics{};
  statistics.struct_bytes = sizeof(statistics);
  check(vmem_stats(&statistics));
  return statistics;
}

// Waits until no page is moving. For tests and measurements.
inline void quiesce() { check(vmem_quiesce()); }

// ---- memory resource -----------------------------------------------------------------------------------------------

// A memory resource in the forms in use: the cuda::mr::resource concept of CCCL 3.1 and RMM 26 (allocate with the stream
// first, allocate_sync), the concept of CCCL 3.0 and before (allocate_async), and RMM's classic allocate(bytes, stream).
// A value: copies are the same resource, and two are equal when they allocate on the same device.
//
// It gives address space; the contract of vmem.h holds for it too: work that touches an allocation holds it.
//
// All forms: `bytes` 0 gives nullptr; `alignment` is a power of two up to 256. Throw vmem::bad_alloc when the tiers or the
// address space are full, vmem::error otherwise. The forms without a stream are ordered on the legacy default stream.
class memory_resource {
 public:
  static constexpr std::size_t max_alignment = 256;

  explicit memory_resource(int device = 0) noexcept : device_(device) {}
  int device() const noexcept { return device_; }

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
  // The memory is reused only after the work queued on `stream`. `bytes` and `alignment` as allocated.
  void deallocate(stream_view stream, void* ptr, std::size_t /*bytes*/ = 0, std::size_t /*alignment*/ = 0) noexcept {
    vmem_free(ptr, stream.get());
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment = max_alignment) {
    return allocate(stream_view{}, bytes, alignment);
  }
  void deallocate_sync(void* ptr, std::size_t bytes = 0, std::size_t alignment = max_alignment) noexcept {
    deallocate(stream_view{}, ptr, bytes, alignment);
  }

  // RMM before 26.02.
  void* allocate(std::size_t bytes, stream_view stream) { return allocate(stream, bytes); }
  void deallocate(void* ptr, std::size_t bytes, stream_view stream) noexcept { deallocate(stream, ptr, bytes); }

  // CCCL before 3.1.
  void* allocate(std::size_t bytes, std::size_t alignment = max_alignment) { return allocate_sync(bytes, alignment); }
  void deallocate(void* ptr, std::size_t bytes, std::size_t alignment = max_alignment) noexcept {
    deallocate_sync(ptr, bytes, alignment);
  }
  void* allocate_async(std::size_t bytes, stream_view stream) { return allocate(stream, bytes); }
  void* allocate_async(std::size_t bytes, std::size_t alignment, stream_view stream) {
    return allocate(stream, bytes, alignment);
  }
  void deallocate_async(void* ptr, std::size_t bytes, stream_view stream) noexcept { deallocate(stream, ptr, bytes); }
  void deallocate_async(void* ptr, std::size_t bytes, std::size_t alignment, stream_view stream) noexcept {
    deallocate(stream, ptr, bytes, alignment);
  }

  bool is_equal(const memory_resource& other) const noexcept { return *this == other; }
  friend bool operator==(const memory_resource&, const memory_resource&) noexcept = default;
#if defined(_CUDA_MEMORY_RESOURCE)  // <cuda/memory_resource> was included before: what the memory can be used from
  friend constexpr void get_property(const memory_resource&, ::cuda::mr::device_accessible) noexcept {}
#endif

 private:
  int device_;
};

}  // namespace v0
}  // namespace vmem

#endif
