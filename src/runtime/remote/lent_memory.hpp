// Host memory of a daemon, which a thread prefaults. Without that, whoever stores the first page in
// a place waits while the kernel allocates and zeroes it.
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
  // Returns at once; prefaulting goes on. Errors: OUT_OF_MEMORY.
  static Result<std::unique_ptr<LentMemory>> create(std::uint64_t bytes);
  ~LentMemory();
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;

  std::span<std::byte> bytes() const { return bytes_; }
  // Bytes that are prefaulted, from the start of the memory on. Any thread.
  std::uint64_t ready_bytes() const { return ready_bytes_.load(std::memory_order_relaxed); }
  // The memory stays until the process ends: the kernel may still write there.
  void leave_mapped() { leave_mapped_ = true; }

 private:
  explicit LentMemory(std::span<std::byte> bytes) : bytes_(bytes) {}
  void prefault(const std::stop_token& stop);

  const std::span<std::byte> bytes_;
  bool leave_mapped_ = false;
  std::atomic<std::uint64_t> ready_bytes_ = 0;
  std::jthread thread_;
};

}  // namespace vmem::runtime
