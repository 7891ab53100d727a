// The failures that a multi-threaded test found.
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

namespace vmem::test {

// Collects failures from any thread, kernels included. Keeps the first few.
class Verdict {
 public:
  void fail(std::string what);
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  std::string words() const;

 private:
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  std::vector<std::string> failures_;
};

// Tells in words how many bytes differ and where the first is.
std::string difference(const char* where, const std::byte* at, const std::byte* found, const std::byte* expected,
                       std::size_t bytes);

}  // namespace vmem::test
