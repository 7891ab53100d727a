#include "base/closed_on_fork.hpp"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>

namespace vmem {
namespace {

// Descriptor + 1; 0: free slot. Lock-free, because the child reads the array right after fork.
std::array<std::atomic<int>, ClosedOnFork::kMost> descriptors;

void close_all() {
  for (auto& each : descriptors) {
    if (const int descriptor = each.exchange(0, std::memory_order_relaxed); descriptor != 0) ::close(descriptor - 1);
  }
}

}  // namespace

ClosedOnFork::ClosedOnFork(int descriptor) noexcept {
  static const bool watching = pthread_atfork(nullptr, nullptr, &close_all) == 0;
  if (!watching) return;
  for (int i = 0; i < kMost; ++i) {
    int expected = 0;
    auto& slot = descriptors[static_cast<std::size_t>(i)];
    if (slot.load(std::memory_order_relaxed) != 0 ||
        !slot.compare_exchange_strong(expected, descriptor + 1, std::memory_order_relaxed))
      continue;
    slot_ = i;
    return;
  }
}

ClosedOnFork::~ClosedOnFork() {
  if (slot_ >= 0) descriptors[static_cast<std::size_t>(slot_)].store(0, std::memory_order_relaxed);
}

}  // namespace vmem
