// Host versions of the kernels in gpu/kernels/fingerprint.cu.
#include <cstring>

#include "gpu/emu/emu.h"
#include "gpu/kernels/fingerprint.hpp"

namespace vmem::emu {
namespace {

using gpu::Fingerprint;

template <class Value>
Value parameter(const vmem_emu_launch* launch, unsigned index) {
  Value value;
  std::memcpy(&value, launch->params[index], sizeof value);
  return value;
}

[[gnu::always_inline]] inline Fingerprint add_up(const std::uint64_t* frame, std::uint64_t words) {
  Fingerprint total;
  for (std::uint64_t i = 0; i < words; ++i) gpu::add_word(total, static_cast<std::uint32_t>(i), frame[i]);
  return total;
}

// The build targets plain x86-64, which has no vector product of 64-bit words. These instructions
// make the loop twice as fast. Not target_clones: its resolvers run before the sanitizers are
// ready.
#if defined(__x86_64__)
[[gnu::target("avx512f,avx512dq,avx512vl,prefer-vector-width=512")]] Fingerprint add_up_wide(const std::uint64_t* frame,
                                                                                             std::uint64_t words) {
  return add_up(frame, words);
}
#endif

Fingerprint fingerprint_of(const std::uint64_t* frame, std::uint64_t words) {
#if defined(__x86_64__)
  static const bool wide = __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (wide) return add_up_wide(frame, words);
#endif
  return add_up(frame, words);
}

void fingerprint(const vmem_emu_launch* launch) {
  const auto* frame = parameter<const std::uint64_t*>(launch, 0);
  const auto words = parameter<std::uint64_t>(launch, 1);
  auto* record = parameter<gpu::SlotRecord*>(launch, 2);
  auto* scratch = parameter<gpu::FingerprintScratch*>(launch, 3);
  const Fingerprint total = fingerprint_of(frame, words);
  const bool changed = parameter<std::uint32_t>(launch, 4) != 0 && !same(total, record->last);
  scratch->changed = changed;
  if (changed) ++record->changes;
  record->last = total;
}

void store_changed(const vmem_emu_launch* launch) {
  const auto words = parameter<std::uint64_t>(launch, 2);
  if (parameter<const gpu::FingerprintScratch*>(launch, 3)->changed == 0) return;
  std::memcpy(parameter<void*>(launch, 1), parameter<const void*>(launch, 0), words * 8);
}

[[maybe_unused]] const bool registered = [] {
  constexpr std::size_t kFingerprint[] = {8, 8, 8, 8, 4};
  constexpr std::size_t kStore[] = {8, 8, 8, 8};
  return vmem_emu_register_kernel(gpu::kFingerprintKernel, fingerprint, kFingerprint, 5) == 0 &&
         vmem_emu_register_kernel(gpu::kStoreChangedKernel, store_changed, kStore, 4) == 0;
}();

}  // namespace
}  // namespace vmem::emu
