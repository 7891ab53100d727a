/// @file
/// Regions that the programs of a cluster publish and open: C++20 over vmem/cluster.h.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "vmem/cluster.h"
#include "vmem/vmem.hpp"

namespace vmem {
inline namespace v0 {

/// A region of a cluster that somebody has published, read-only GPU memory at the same address on
/// every node: one's own, or opened by its name. Move-only. Without an element type the unit is
/// bytes. The destructor closes it in order of its stream, but not while a range is still held.
template <class T = std::byte>
class published {
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>, "elements are moved as bytes");

 public:
  /// The type of an element.
  using value_type = T;

  published() noexcept = default;  // empty
  /// Opens a region, waiting for its name to be published. Its last bytes are left out if they are
  /// no whole element. Throws TIMEOUT, LOST, INVALID_VALUE (no name, unknown device),
  /// INVALID_OPTION (another tenant's, or a refused secret), IN_USE (open on 64 nodes),
  /// ADDRESS_SPACE, OUT_OF_MEMORY, NOT_INITIALIZED (this node is no member), UNSUPPORTED (no option
  /// cluster).
  explicit published(const char* name, std::chrono::microseconds wait = std::chrono::seconds(30), int device = 0,
                     stream_view stream = {})
      : stream_(stream) {
    void* opened = nullptr;
    std::uint64_t bytes = 0;
    const auto wait_us = static_cast<std::uint64_t>(std::max<std::chrono::microseconds::rep>(wait.count(), 0));
    check(vmem_open(&opened, &bytes, name, device, wait_us));
    data_ = static_cast<const T*>(opened);
    size_ = static_cast<std::size_t>(bytes / sizeof(T));
  }
  /// Publishes a buffer's memory, which nobody can write to any more; the buffer is empty then. A
  /// name that is published already gets a new version: from the same program, or, once that has
  /// ended, from any of its tenant.
  /// Throws INVALID_VALUE (no name, a buffer of up to 1 MiB), IN_USE, UNSUPPORTED: the buffer is as
  /// before; TIMEOUT, LOST: what was published is closed again, and the buffer is as before if that
  /// had not begun.
  static published from(buffer<T>&& memory, const char* name, const vmem_publish_options& options = {}) {
    const vmem_status status = vmem_publish(memory.data(), name, &options);
    if (status == VMEM_ERROR_TIMEOUT || status == VMEM_ERROR_LOST) {
      const error late(status, vmem_last_error());
      if (vmem_close(memory.data(), memory.stream().get(), 0) != VMEM_ERROR_INVALID_POINTER) (void)memory.release();
      throw late;
    }
    check(status);
    published result;
    result.stream_ = memory.stream();
    result.size_ = memory.size();
    result.data_ = memory.release();
    return result;
  }
  /// Leaves `other` empty.
  published(published&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), stream_(other.stream_) {}
  /// Closes what was open, as the destructor does, and leaves `other` empty.
  published& operator=(published&& other) noexcept {
    published(std::move(other)).swap(*this);
    return *this;
  }
  ~published() {
    if (data_ != nullptr) vmem_close(const_cast<T*>(data_), stream_.get(), 0);
  }

  /// Exchanges regions and streams.
  void swap(published& other) noexcept {
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

  /// Closes it now. While a range is held, throws IN_USE and keeps it open. TIMEOUT and LOST say
  /// that pages which only this node kept may be lost; it is closed then.
  void reset() {
    if (data_ == nullptr) return;
    const vmem_status status = vmem_close(const_cast<T*>(data_), stream_.get(), 0);
    if (status == VMEM_OK || status == VMEM_ERROR_TIMEOUT || status == VMEM_ERROR_LOST) {
      data_ = nullptr;
      size_ = 0;
    }
    check(status);
  }

  /// Copies elements [first, first + host.size()) to host memory. Throws INVALID_RANGE, LOST,
  /// TIMEOUT.
  void load(std::span<T> host, std::size_t first = 0) const {
    if (first > size_ || host.size() > size_ - first)
      throw error(VMEM_ERROR_INVALID_RANGE, "elements " + std::to_string(first) + " to " +
                                                std::to_string(first + host.size()) + " of a region of " +
                                                std::to_string(size_));
    if (!host.empty()) check(vmem_read(host.data(), data_ + first, host.size_bytes()));
  }

 private:
  const T* data_ = nullptr;
  std::size_t size_ = 0;
  stream_view stream_;
};

/// A whole published region that GPU work reads.
template <class T>
vmem_range read(const published<T>& p) noexcept {
  return read(p.data(), p.bytes());
}

/// What this program shares, as vmem_published_stats. Throws UNSUPPORTED (no option cluster).
inline vmem_published_statistics published_stats() {
  vmem_published_statistics statistics{};
  statistics.struct_bytes = sizeof(statistics);
  check(vmem_published_stats(&statistics));
  return statistics;
}

}  // namespace v0
}  // namespace vmem
