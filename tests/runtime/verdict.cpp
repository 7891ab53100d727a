#include "runtime/verdict.hpp"

#include <fmt/format.h>

#include <utility>

namespace vmem::test {

std::string difference(const char* where, const std::byte* at, const std::byte* found, const std::byte* expected,
                       std::size_t bytes) {
  std::size_t first = 0, wrong = 0;
  for (std::size_t i = bytes; i-- > 0;) {
    if (found[i] == expected[i]) continue;
    first = i;
    ++wrong;
  }
  return fmt::format("{}: {} of {} bytes at {} are wrong, the first at {}: {:#04x}, not {:#04x}", where, wrong, bytes,
                     fmt::ptr(at), fmt::ptr(at + first), int(found[first]), int(expected[first]));
}

void Verdict::fail(std::string what) {
  const std::lock_guard lock(mutex_);
  if (failures_.size() < 8) failures_.push_back(std::move(what));
  failed_.store(true, std::memory_order_relaxed);
}

std::string Verdict::words() const {
  const std::lock_guard lock(mutex_);
  std::string all;
  for (const auto& failure : failures_) all += failure + "\n";
  return all;
}

}  // namespace vmem::test
