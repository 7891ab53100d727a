// A zero-filled array that uses memory only for touched pages.
#pragma once

#include <cstddef>
#include <utility>

#include "base/status.hpp"

namespace vmem::pagetable {

// The memory of LazyArray. `bytes` of zeros, committed on first touch. Errors: ADDRESS_SPACE.
Result<void*> map_lazily(std::size_t bytes);
void unmap_lazily(void* memory, std::size_t bytes) noexcept;

template <class T>
class LazyArray {
 public:
  LazyArray() = default;
  ~LazyArray() {
    if (data_ != nullptr) unmap_lazily(data_, count_ * sizeof(T));
  }
  LazyArray(LazyArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  LazyArray& operator=(LazyArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  static Result<LazyArray> create(std::size_t count) {
    VMEM_ASSIGN(void* const memory, map_lazily(count * sizeof(T)));
    LazyArray array;
    array.data_ = static_cast<T*>(memory);
    array.count_ = count;
    return array;
  }
  T& operator[](std::size_t i) const noexcept { return data_[i]; }
  std::size_t size() const noexcept { return count_; }

 private:
  T* data_ = nullptr;
  std::size_t count_ = 0;
};

}  // namespace vmem::pagetable
