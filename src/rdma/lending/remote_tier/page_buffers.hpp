// Buffers for pages in flight, cached by size: the kernel would zero fresh memory each time.
// Any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "rdma/transport/transport.hpp"

namespace vmem::rdma {

class PageBuffers {
 public:
  // Returns its memory to the owner on destruction. Empty: no memory was available.
  class Buffer {
   public:
    Buffer() = default;
    Buffer(PageBuffers& owner, std::unique_ptr<std::byte[]> memory, std::size_t bytes)
        : owner_(&owner), memory_(std::move(memory)), bytes_(bytes) {}
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
      swap(other);
      return *this;
    }
    ~Buffer() {
      if (memory_ != nullptr) owner_->put(std::move(memory_), bytes_);
    }
    explicit operator bool() const noexcept { return memory_ != nullptr; }
    Bytes bytes() noexcept { return {memory_.get(), bytes_}; }

   private:
    void swap(Buffer& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(memory_, other.memory_);
      std::swap(bytes_, other.bytes_);
    }
    PageBuffers* owner_ = nullptr;
    std::unique_ptr<std::byte[]> memory_;
    std::size_t bytes_ = 0;
  };

  // Caches at most most_kept buffers.
  explicit PageBuffers(std::size_t most_kept) { kept_.reserve(most_kept); }

  // Frees what is cached.
  void clear() {
    const std::lock_guard lock(mutex_);
    kept_.clear();
  }

  // The buffer must not outlive this object.
  Buffer take(std::size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      for (auto& each : kept_) {
        if (each.second != bytes) continue;
        std::swap(each, kept_.back());
        std::unique_ptr<std::byte[]> memory = std::move(kept_.back().first);
        kept_.pop_back();
        return {*this, std::move(memory), bytes};
      }
    }
    std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[bytes]);
    if (memory == nullptr) return {};
    return {*this, std::move(memory), bytes};
  }

 private:
  void put(std::unique_ptr<std::byte[]> memory, std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    // Frees the oldest, so that sizes no longer in use do not fill the cache.
    if (kept_.size() == kept_.capacity() && !kept_.empty()) kept_.erase(kept_.begin());
    if (kept_.size() < kept_.capacity()) kept_.emplace_back(std::move(memory), bytes);
  }

  std::mutex mutex_;
  std::vector<std::pair<std::unique_ptr<std::byte[]>, std::size_t>> kept_;  // never reallocated
};

}  // namespace vmem::rdma
