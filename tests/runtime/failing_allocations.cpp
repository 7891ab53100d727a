#include "runtime/failing_allocations.hpp"

#include <unwind.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace vmem::test {
namespace {

constexpr std::size_t kFrames = 10;        // of a call stack, to distinguish it
constexpr std::size_t kStacks = 1u << 16;  // remembered
constinit std::array<std::atomic<std::uint64_t>, kStacks> seen{};
constinit std::atomic<bool> armed{false};
constinit std::atomic<std::uint32_t> left{0}, between{0}, skipped{0};
constinit std::atomic<std::uint64_t> refusals{0};
constinit std::uint64_t refusals_before = 0;
constinit std::atomic<std::size_t> always_from{SIZE_MAX};
constinit std::atomic<std::uint32_t> let_through{0};
constinit thread_local int spared = 0;
constinit thread_local bool looking = false;  // the unwinder allocates too

struct Walk {
  std::uint64_t hash = 0xcbf29ce484222325;
  std::size_t frames = 0;
};

_Unwind_Reason_Code see_frame(_Unwind_Context* context, void* argument) {
  auto& walk = *static_cast<Walk*>(argument);
  walk.hash = (walk.hash ^ _Unwind_GetIP(context)) * 0x100000001b3;
  return ++walk.frames == kFrames ? _URC_END_OF_STACK : _URC_NO_REASON;
}

// True once per call stack.
bool is_new(std::uint64_t stack) {
  for (std::size_t i = 0; i < kStacks; ++i) {
    std::atomic<std::uint64_t>& place = seen[(stack + i) % kStacks];
    std::uint64_t known = place.load();
    if (known == 0 && place.compare_exchange_strong(known, stack)) return true;
    if (known == stack) return false;
  }
  return false;
}

bool is_known(std::uint64_t stack) {
  for (std::size_t i = 0; i < kStacks; ++i) {
    const std::uint64_t known = seen[(stack + i) % kStacks].load();
    if (known == stack) return true;
    if (known == 0) return false;
  }
  return true;
}

bool take_one(std::atomic<std::uint32_t>& from) {
  std::uint32_t count = from.load();
  while (count != 0) {
    if (from.compare_exchange_weak(count, count - 1)) return true;
  }
  return false;
}

bool refuse(std::size_t bytes) {
  if (spared == 0 && bytes >= always_from.load(std::memory_order_relaxed)) {
    if (take_one(let_through)) return false;
    ++refusals;
    return true;
  }
  if (!armed.load(std::memory_order_relaxed) || spared != 0 || looking) return false;
  looking = true;
  Walk walk;
  _Unwind_Backtrace(see_frame, &walk);
  looking = false;
  if (left.load() == 0 || is_known(walk.hash)) return false;
  if (take_one(skipped)) return false;
  if (!take_one(left) || !is_new(walk.hash)) return false;
  skipped.store(between.load());
  ++refusals;
  return true;
}

void* try_to_allocate(std::size_t bytes, std::size_t alignment) noexcept {
  void* memory = nullptr;
  if (refuse(bytes) || ::posix_memalign(&memory, alignment, bytes == 0 ? 1 : bytes) != 0) return nullptr;
  return memory;
}

void* allocate(std::size_t bytes, std::size_t alignment) {
  for (;;) {
    if (void* const memory = try_to_allocate(bytes, alignment)) return memory;
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}

}  // namespace

void FailingAllocations::arm(std::uint32_t most, std::uint32_t apart) {
  left = most;
  between = skipped = apart;
  refusals_before = refusals;
  armed = true;
}

void FailingAllocations::arm_from(std::size_t bytes, std::uint32_t spared) {
  let_through = spared;
  refusals_before = refusals;
  always_from = bytes;
}

std::uint32_t FailingAllocations::disarm() {
  armed = false;
  always_from = SIZE_MAX;
  return std::uint32_t(refusals - refusals_before);
}

FailingAllocations::Spared::Spared() { ++spared; }
FailingAllocations::Spared::~Spared() { --spared; }

}  // namespace vmem::test

using vmem::test::allocate;
using vmem::test::try_to_allocate;

constexpr std::size_t kUsual = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

void* operator new(std::size_t bytes) { return allocate(bytes, kUsual); }
void* operator new[](std::size_t bytes) { return allocate(bytes, kUsual); }
void* operator new(std::size_t bytes, std::align_val_t alignment) { return allocate(bytes, std::size_t(alignment)); }
void* operator new[](std::size_t bytes, std::align_val_t alignment) { return allocate(bytes, std::size_t(alignment)); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return try_to_allocate(bytes, kUsual); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return try_to_allocate(bytes, kUsual); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

// The only function of malloc's family that vmem calls.
extern "C" void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  void* memory = nullptr;
  if (vmem::test::refuse(bytes) || ::posix_memalign(&memory, alignment, bytes) != 0) return nullptr;
  return memory;
}
