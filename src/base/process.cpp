#include "base/process.hpp"

#include <pthread.h>

#include <atomic>

namespace vmem::process {
namespace {

std::atomic<bool> is_child{false};

}  // namespace

bool watch_forks() {
  static const bool registered =
      pthread_atfork(nullptr, nullptr, [] { is_child.store(true, std::memory_order_relaxed); }) == 0;
  is_child.store(false, std::memory_order_relaxed);  // a child that starts afresh is nobody's child
  return registered;
}

bool forked() noexcept { return is_child.load(std::memory_order_relaxed); }

}  // namespace vmem::process
