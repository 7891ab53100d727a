#include "base/process.hpp"

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace vmem::process {
namespace {

std::atomic<bool> is_child{false};

// Numbers of ended threads. Never destroyed: threads may end after the program's statics.
struct Spare {
  std::mutex mutex;
  std::vector<std::uintptr_t> numbers;
};
Spare& spare() {
  static auto* const instance = new Spare;
  return *instance;
}

std::uintptr_t fresh_number() {
  static std::atomic<std::uintptr_t> last{0};
  return ++last;
}

// Trivial types, so that they remain usable while other thread-local variables are destroyed.
constinit thread_local std::uintptr_t current = 0;
constinit thread_local bool kept = false;
constinit thread_local bool ended = false;

struct NumberOwner {
  NumberOwner() {
    const std::lock_guard lock(spare().mutex);
    if (spare().numbers.empty()) {
      current = fresh_number();
    } else {
      current = spare().numbers.back();
      spare().numbers.pop_back();
    }
  }
  ~NumberOwner() {
    ended = true;
    const std::uintptr_t number = std::exchange(current, 0);
    if (kept || forked()) return;  // forked: a thread of the parent may have held the mutex
    const std::lock_guard lock(spare().mutex);
    spare().numbers.push_back(number);
  }
  NumberOwner(const NumberOwner&) = delete;
  NumberOwner& operator=(const NumberOwner&) = delete;
};

}  // namespace

bool watch_forks() {
  static const bool registered =
      pthread_atfork(nullptr, nullptr, [] { is_child.store(true, std::memory_order_relaxed); }) == 0;
  is_child.store(false, std::memory_order_relaxed);  // a child that starts anew counts as unforked
  return registered;
}

bool forked() noexcept { return is_child.load(std::memory_order_relaxed); }

std::uintptr_t thread_number() {
  if (current != 0) return current;
  if (ended) return fresh_number();
  thread_local const NumberOwner owner;
  return current;
}

void keep_thread_number() noexcept { kept = true; }

}  // namespace vmem::process
