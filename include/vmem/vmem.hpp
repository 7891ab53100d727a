/// @file
/// vmem for C++20: RAII and exceptions over vmem.h, header-only. vmem.h documents the contract and
/// each call.
///
///     vmem::session session({{"hbm", "4GiB"}});          // start; ends with the scope
///     vmem::buffer<float> x(1 << 30), y(1 << 30);        // 4 GiB each
///     {
///       vmem::hold h(stream, vmem::read(x), vmem::read_write(y));
///       saxpy<<<grid, block, 0, stream>>>(x.size(), 2.0f, x.data(), y.data());
///     }                                                  // released: pages may move once idle
///
/// Sizes are bytes, except where an element type gives another unit. Devices are CUDA ordinals.
/// Every function may throw vmem::error unless it is noexcept; a call that throws has changed
/// nothing. Comments name the statuses of errors without VMEM_ERROR_.
///
/// Threads. Functions may be called from any thread. An object may be used by several threads only
/// while none changes it; a hold is released by the thread that made it.
#ifndef VMEM_VMEM_HPP
#define VMEM_VMEM_HPP

#if __cplusplus < 201709L
#error "vmem/vmem.hpp needs C++20: compile with -std=c++20, or use vmem/vmem.h"
#else

#if __cplusplus < 201709L
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

// ---- errors -------------------------------------------------------------------------------------

/// A failed call. what() is vmem_last_error(), or the status string if that is empty.
class error : public std::runtime_error {
 public:
  /// With the message that what() gives.
  error(vmem_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  /// What vmem's call returned.
  vmem_status status() const noexcept { return status_; }

 private:
  vmem_status status_;
};

/// Thrown by memory_resource for lack of memory: containers catch std::bad_alloc.
class bad_alloc : public std::bad_alloc {
 public:
  /// With the message that what() gives.
  bad_alloc(vmem_status status, const std::string& message)
      : status_(status), message_(std::make_shared<const std::string>(message)) {}
  /// The message; valid as long as the exception.
  const char* what() const noexcept override { return message_->c_str(); }
  /// What vmem's call returned.
  vmem_status status() const noexcept { return status_; }

 private:
  vmem_status status_;
  std::shared_ptr<const std::string> message_;  // copying an exception must not throw
};

/// The calling thread's last failure in words, or else the status string.
inline std::string message_of(vmem_status status) {
  const char* words = vmem_last_error();
  return *words != '\0' ? words : vmem_status_string(status);
}

/// Throws vmem::error unless the status is VMEM_OK.
inline void check(vmem_status status) {
  if (status != VMEM_OK) throw error(status, message_of(status));
}

// ---- streams ------------------------------------------------------------------------------------

/// A CUDA stream, not owned. Constructed from CUstream or cudaStream_t, from a type that converts
/// to one, or from a type with get(). The default is the legacy default stream.
class stream_view {
 public:
  constexpr stream_view() noexcept = default;
  /// From CUstream, cudaStream_t, or a type that converts to one.
  template <class S>
    requires std::convertible_to<const S&, vmem_stream>
  constexpr stream_view(const S& stream) noexcept : stream_(static_cast<vmem_stream>(stream)) {}
  /// From a type with get().
  template <class S>
    requires(!std::convertible_to<const S&, vmem_stream> && !std::same_as<S, stream_view> &&
             requires(const S& s) {
               { s.get() } -> std::convertible_to<vmem_stream>;
             })
  constexpr stream_view(const S& stream) noexcept : stream_(stream.get()) {}

  /// The handle; nullptr is the legacy default stream.
  constexpr vmem_stream get() const noexcept { return stream_; }
  friend constexpr bool operator==(stream_view, stream_view) noexcept = default;

 private:
  vmem_stream stream_ = nullptr;
};

/// Call before the stream is destroyed, or when it will not be used with vmem again.
inline void close(stream_view stream) { check(vmem_stream_close(stream.get())); }

// ---- start and end ------------------------------------------------------------------------------

/// {"hbm", "4GiB"}: a name as listed by `vmem options`, and its value.
using option = vmem_option;

/// Starts the runtime. Options not named come from the environment (VMEM_HBM), then from their
/// defaults.
inline void init(std::span<const option> options) { check(vmem_init(options.data(), options.size())); }
/// The same, with options in braces.
inline void init(std::initializer_list<option> options = {}) { check(vmem_init(options.begin(), options.size())); }

/// Waits for queued work, frees remaining allocations and ends the runtime. Throws IN_USE while
/// ranges are held.
inline void shutdown() { check(vmem_shutdown()); }

/// init and shutdown as a scope. Declare it first: buffers and holds must end before it.
class session {
 public:
  /// With options from the environment and defaults.
  session() { init(); }
  /// With `options`; throws as init() does.
  explicit session(std::initializer_list<option> options) { init(options); }
  /// With `options`; throws as init() does.
  explicit session(std::span<const option> options) { init(options); }
  session(const session&) = delete;
  session& operator=(const session&) = delete;
  ~session() { vmem_shutdown(); }
};

/// "MAJOR.MINOR.PATCH" of the library.
inline const char* version() noexcept { return vmem_version(); }

// ---- memory -------------------------------------------------------------------------------------

/// Owns `size()` elements of virtual GPU memory, 256-byte aligned, contents undefined. Move-only.
/// Without an element type the unit is bytes: vmem::buffer raw(1 << 20). The destructor frees in
/// order of the buffer's stream. It frees nothing while a range is still held, so end holds before
/// buffers.
template <class T = std::byte>
class buffer {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>, "elements are moved as bytes");

 public:
  /// The type of an element.
  using value_type = T;

  buffer() noexcept = default;  // empty
  /// Throws OUT_OF_MEMORY when the tiers together cannot back it, ADDRESS_SPACE, INVALID_VALUE
  /// (unknown device). A `size` of 0 makes an empty buffer.
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
  /// Leaves `other` empty.
  buffer(buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        device_(other.device_),
        stream_(other.stream_) {}
  /// Frees what was owned, as the destructor does, and leaves `other` empty.
  buffer& operator=(buffer&& other) noexcept {
    buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~buffer() { vmem_free(data_, stream_.get()); }

  /// Exchanges memory and streams.
  void swap(buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(device_, other.device_);
    std::swap(stream_, other.stream_);
  }

  /// Device pointer: for kernels, between acquire and release. The CPU must not dereference it.
  T* data() const noexcept { return data_; }
  /// In elements.
  std::size_t size() const noexcept { return size_; }
  /// In bytes.
  std::size_t bytes() const noexcept { return size_ * sizeof(T); }
  /// Whether there are no elements; data() is nullptr then.
  bool empty() const noexcept { return size_ == 0; }
  /// CUDA ordinal.
  int device() const noexcept { return device_; }

  /// The memory is freed in the order of this stream.
  stream_view stream() const noexcept { return stream_; }
  /// Frees in the order of another stream; order the work on both before.
  void set_stream(stream_view stream) noexcept { stream_ = stream; }

  /// Frees now. While a range is held, throws IN_USE and keeps the memory.
  void reset() {
    check(vmem_free(data_, stream_.get()));
    data_ = nullptr;
    size_ = 0;
  }
  /// Releases ownership: the caller frees the pointer with vmem_free.
  [[nodiscard]] T* release() noexcept {
    size_ = 0;
    return std::exchange(data_, nullptr);
  }

  /// Copies elements [first, first + host.size()) to host memory, without bringing pages into HBM,
  /// and returns when done. Throws INVALID_RANGE if the elements leave the buffer, LOST, TIMEOUT.
  void load(std::span<T> host, std::size_t first = 0) const {
    if (!host.empty()) check(vmem_read(host.data(), at(first, host.size()), host.size_bytes()));
  }
  /// The other direction. Throws INVALID_RANGE, and IN_USE for a range that is held.
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

/// A range of bytes of a file as read-only GPU memory: pages are read from the file when used.
/// Move-only. Without an element type the unit is bytes. The destructor ends the mapping in order
/// of its stream, but not while a range is still held. The file must not change: pages read later
/// are lost otherwise.
template <class T = std::byte>
class mapped_file {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>, "elements are read as bytes");

 public:
  /// The type of an element.
  using value_type = T;

  mapped_file() noexcept = default;  // empty
  /// Maps `size` elements from byte `offset`, or all whole elements to the end of the file if
  /// `size` is 0. Throws INVALID_VALUE (the file is missing, not regular or has nothing there, or
  /// `offset` is not a multiple of T's alignment), INVALID_RANGE, OUT_OF_MEMORY, ADDRESS_SPACE,
  /// UNSUPPORTED.
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
  /// Leaves `other` empty.
  mapped_file(mapped_file&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), stream_(other.stream_) {}
  /// Ends the mapping that was owned, as the destructor does, and leaves `other` empty.
  mapped_file& operator=(mapped_file&& other) noexcept {
    mapped_file(std::move(other)).swap(*this);
    return *this;
  }
  ~mapped_file() { vmem_free(const_cast<T*>(data_), stream_.get()); }

  /// Exchanges mappings and streams.
  void swap(mapped_file& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(stream_, other.stream_);
  }

  /// A device pointer: for kernels, between acquire and release. The CPU must not dereference it.
  const T* data() const noexcept { return data_; }
  /// In elements.
  std::size_t size() const noexcept { return size_; }
  /// In bytes.
  std::size_t bytes() const noexcept { return size_ * sizeof(T); }
  /// Whether there are no elements; data() is nullptr then.
  bool empty() const noexcept { return size_ == 0; }

  /// Ends the mapping now. While a range is held, throws IN_USE and keeps the mapping.
  void reset() {
    check(vmem_free(const_cast<T*>(data_), stream_.get()));
    data_ = nullptr;
    size_ = 0;
  }

  /// Copies elements [first, first + host.size()) to host memory. Throws INVALID_RANGE, LOST.
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

// ---- use by GPU work ----------------------------------------------------------------------------

/// A range for hold, acquire and release: `bytes` bytes from `ptr`, used as `access` says
/// (VMEM_READ and so on).
inline vmem_range range(const void* ptr, std::size_t bytes, unsigned access) noexcept {
  return {const_cast<void*>(ptr), bytes, access, 0};
}
/// A range that GPU work reads.
inline vmem_range read(const void* ptr, std::size_t bytes) noexcept { return range(ptr, bytes, VMEM_READ); }
/// A range that GPU work writes. Bytes not written keep their value.
inline vmem_range write(void* ptr, std::size_t bytes) noexcept { return range(ptr, bytes, VMEM_WRITE); }
/// A range that GPU work reads and writes.
inline vmem_range read_write(void* ptr, std::size_t bytes) noexcept { return range(ptr, bytes, VMEM_READ_WRITE); }
/// A range whose every byte is written before it is read, so vmem need not fetch old contents.
inline vmem_range discard(void* ptr, std::size_t bytes) noexcept {
  return range(ptr, bytes, VMEM_WRITE | VMEM_DISCARD);
}

/// A whole buffer that GPU work reads.
template <class T>
vmem_range read(const buffer<T>& b) noexcept {
  return read(b.data(), b.bytes());
}
/// A whole mapping that GPU work reads.
template <class T>
vmem_range read(const mapped_file<T>& m) noexcept {
  return read(m.data(), m.bytes());
}
/// A whole buffer that GPU work writes.
template <class T>
vmem_range write(buffer<T>& b) noexcept {
  return write(b.data(), b.bytes());
}
/// A whole buffer that GPU work reads and writes.
template <class T>
vmem_range read_write(buffer<T>& b) noexcept {
  return read_write(b.data(), b.bytes());
}
/// A whole buffer whose every byte is written before it is read.
template <class T>
vmem_range discard(buffer<T>& b) noexcept {
  return discard(b.data(), b.bytes());
}

/// Makes ranges usable by work queued on `stream` from now on; all or nothing. Throws LOST,
/// OUT_OF_MEMORY, UNSUPPORTED (capturing stream), INVALID_POINTER, INVALID_RANGE.
inline void acquire(stream_view stream, std::span<const vmem_range> ranges) {
  check(vmem_acquire(ranges.data(), ranges.size(), stream.get()));
}
/// Everything queued on `stream` so far is the last use of the ranges, which this thread acquired.
/// Throws NOT_ACQUIRED.
inline void release(stream_view stream, std::span<const vmem_range> ranges) {
  check(vmem_release(ranges.data(), ranges.size(), stream.get()));
}

/// Acquires N ranges and releases them at the end of the scope, in the same thread. Allocates
/// nothing.
template <std::size_t N>
class [[nodiscard]] hold {
 public:
  /// Throws as acquire() does.
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

  /// Releases before the end of the scope.
  void release() {
    if (!std::exchange(held_, false)) return;
    v0::release(stream_, ranges_);
  }

 private:
  stream_view stream_;
  std::array<vmem_range, N> ranges_;
  bool held_ = false;
};
/// The number of ranges follows from the arguments.
template <class S, class... R>
hold(const S&, const R&...) -> hold<sizeof...(R)>;

// ---- hints, copies and figures ------------------------------------------------------------------

/// Hints that a range will be needed in HBM soon. Returns at once; lack of space is no error.
inline void prefetch(const void* ptr, std::size_t bytes) { check(vmem_prefetch(ptr, bytes)); }
/// The same for a whole buffer.
template <class T>
void prefetch(const buffer<T>& b) {
  if (!b.empty()) prefetch(b.data(), b.bytes());
}
/// The same for a whole mapping.
template <class T>
void prefetch(const mapped_file<T>& m) {
  if (!m.empty()) prefetch(m.data(), m.bytes());
}

/// Advice for the pages a range touches. Throws OUT_OF_MEMORY (VMEM_ADVISE_PIN beyond the budget),
/// UNSUPPORTED.
inline void advise(const void* ptr, std::size_t bytes, vmem_advice advice) { check(vmem_advise(ptr, bytes, advice)); }
/// The same for a whole buffer.
template <class T>
void advise(const buffer<T>& b, vmem_advice advice) {
  if (!b.empty()) advise(b.data(), b.bytes(), advice);
}

/// Copies `bytes` bytes in stream order; pages are acquired and released in pieces. Each side is
/// vmem memory or any pointer CUDA accepts, and may be larger than HBM. Throws INVALID_VALUE for
/// ranges that overlap, and as acquire() does.
inline void memcpy(void* dst, const void* src, std::size_t bytes, stream_view stream = {}) {
  check(vmem_memcpy(dst, src, bytes, stream.get()));
}
/// Fills `bytes` bytes with the low 8 bits of `value`, in stream order. Throws as acquire() does.
inline void memset(void* ptr, int value, std::size_t bytes, stream_view stream = {}) {
  check(vmem_memset(ptr, value, bytes, stream.get()));
}

/// Copies from vmem memory to host memory without using HBM, and returns when done; buffer::load is
/// the typed version. Throws INVALID_POINTER, INVALID_RANGE, LOST, TIMEOUT.
inline void read(void* host_dst, const void* src, std::size_t bytes) { check(vmem_read(host_dst, src, bytes)); }
/// Copies from host memory to vmem memory; buffer::store is the typed version. Throws as read()
/// does, and IN_USE for a range that is held.
inline void write(void* dst, const void* host_src, std::size_t bytes) { check(vmem_write(dst, host_src, bytes)); }

/// A snapshot of the tiers that hold the pages of `ptr`'s allocation. Throws INVALID_POINTER.
inline vmem_pointer_info query(const void* ptr) {
  vmem_pointer_info info{};
  check(vmem_query(ptr, &info));
  return info;
}
/// The same for a buffer.
template <class T>
vmem_pointer_info query(const buffer<T>& b) {
  return query(b.data());
}

/// The runtime's budgets and counters since init.
inline vmem_statistics stats() {
  vmem_statistics statistics{};
  statistics.struct_bytes = sizeof(statistics);
  check(vmem_stats(&statistics));
  return statistics;
}

/// Waits until no page is moving. For tests and measurements.
inline void quiesce() { check(vmem_quiesce()); }

}  // namespace v0
}  // namespace vmem

#endif  // C++20
#endif
