#include "base/memory_reserve.hpp"

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>

namespace vmem {
namespace {

thread_local MemoryReserve* mine = nullptr;

std::mutex handler_mutex;
std::size_t reserves = 0;                       // live reserves; protected by handler_mutex
std::atomic<std::new_handler> before{nullptr};  // the handler for threads without a reserve

// This thread is inside the earlier handler, which may call ours if it was set later and kept ours.
thread_local bool asking_before = false;
struct AskingBefore {
  AskingBefore() { asking_before = true; }
  ~AskingBefore() { asking_before = false; }
};

// The program's threads fail as they would without vmem.
void on_failure() {
  if (mine != nullptr && mine->release_one()) return;
  const std::new_handler handler = before.load();
  if (handler == nullptr || asking_before) throw std::bad_alloc();
  const AskingBefore asking;
  handler();
}

void install() noexcept {
  const std::lock_guard lock(handler_mutex);
  if (reserves++ == 0) before.store(std::set_new_handler(on_failure));
}

// A handler set by others meanwhile may still call ours, which is harmless.
void remove() noexcept {
  const std::lock_guard lock(handler_mutex);
  if (--reserves == 0 && std::get_new_handler() == on_failure) std::set_new_handler(before.load());
}

}  // namespace

MemoryReserve::MemoryReserve() {
  if (mine != nullptr) return;
  registered_ = true;
  install();
  mine = this;
  (void)refill();
}

MemoryReserve::~MemoryReserve() {
  if (!registered_) return;
  mine = nullptr;
  while (release_one()) {
  }
  remove();
}

bool MemoryReserve::refill() noexcept {
  if (!registered_) return true;
  while (filled_ < kBlocks) {
    void* const block = std::malloc(kBlockBytes);
    if (block == nullptr) return false;
    blocks_[filled_++] = block;
  }
  return true;
}

bool MemoryReserve::release_one() noexcept {
  if (filled_ == 0) return false;
  std::free(blocks_[--filled_]);
  return true;
}

}  // namespace vmem
