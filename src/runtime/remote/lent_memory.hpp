// Host memory of a daemon. A thread has the kernel provide its pages, from the beginning on: else
// who stores a page there first waits until the kernel has zeroed it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>

#include "base/status.hpp"

namespace vmem::runtime {

class LentMemory {
 public:
  // Returns before the pages are there. Errors: OUT_OF_MEMORY.
  static Result<std::unique_ptr<LentMemory>> create(std::uint64_t bytes);
  ~LentMemory();
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  // So many, from the beginning on, have their pages. Any thread.
  std::uint64_t ready_bytes() const { return ready_bytes_.load(std::memory_order_relaxed); }
  // The memory stays until the process ends: the kernel may still write there.
  void leave_mapped() { leave_mapped_ = true; }

 private:
  explicit LentMemory(std::span<std::byte> bytes) : bytes_(bytes) {}
  void make_ready(const std::stop_token& stop);

  const std::span<std::byte> bytes_;
  bool leave_mapped_ = false;
  std::atomic<std::uint64_t> ready_bytes_ = 0;
  std::jthread thread_;
};

}  // namespace vmem::runtime
