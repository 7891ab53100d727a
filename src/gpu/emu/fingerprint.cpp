// Host versions of the kernels in gpu/kernels/fingerprint.cu.
#include <algorithm>
#include <atomic>
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

// Of the frame's words from `begin` to `end`.
[[gnu::always_inline]] inline Fingerprint add_up(const std::uint64_t* frame, std::uint64_t begin, std::uint64_t end) {
  Fingerprint total;
  for (std::uint64_t i = begin; i < end; ++i) gpu::add_word(total, static_cast<std::uint32_t>(i), frame[i]);
  return total;
}

// The build targets plain x86-64, which has no vector product of 64-bit words. These instructions
// make the loop twice as fast. Not target_clones: its resolvers run before the sanitizers are
// ready.
#if defined(__x86_64__)
[[gnu::target("avx512f,avx512dq,avx512vl,prefer-vector-width=512")]] Fingerprint add_up_wide(const std::uint64_t* frame,
                                                                                             std::uint64_t begin,
                                                                                             std::uint64_t end) {
  return add_up(frame, begin, end);
}
#endif

Fingerprint fingerprint_of(const std::uint64_t* frame, std::uint64_t begin, std::uint64_t end) {
#if defined(__x86_64__)
  static const bool wide = __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (wide) return add_up_wide(frame, begin, end);
#endif
  return add_up(frame, begin, end);
}

void fingerprint(const vmem_emu_launch* launch) {
  const auto* frame = parameter<const std::uint64_t*>(launch, 0);
  const auto words = parameter<std::uint64_t>(launch, 1);
  auto* record = parameter<gpu::SlotRecord*>(launch, 2);
  auto* scratch = parameter<gpu::FingerprintScratch*>(launch, 3);
  const bool compare = parameter<std::uint32_t>(launch, 4) != 0;
  auto* pieces = parameter<Fingerprint*>(launch, 5);
  const std::uint64_t piece_words = gpu::words_of_piece(words);
  Fingerprint total;
  std::uint64_t changed_words = 0;
  for (std::uint32_t piece = 0; piece < gpu::pieces_of(words); ++piece) {
    const std::uint64_t begin = piece * piece_words, end = std::min(words, begin + piece_words);
    const Fingerprint sum = fingerprint_of(frame, begin, end);
    total.first += sum.first;
    total.second += sum.second;
    const bool changed = compare && (pieces == nullptr || !same(sum, pieces[piece]));
    scratch->piece_changed[piece] = changed;
    if (changed) changed_words += end - begin;
    if (pieces != nullptr) pieces[piece] = sum;
  }
  const bool changed = compare && !same(total, record->last);
  scratch->changed = changed;
  record->last = total;
  if (!changed) return;
  std::atomic_ref(record->changed_words).fetch_add(changed_words, std::memory_order_relaxed);
  std::atomic_ref(record->changes).fetch_add(1, std::memory_order_release);
}

void store_changed(const vmem_emu_launch* launch) {
  const auto* frame = parameter<const std::uint64_t*>(launch, 0);
  auto* slot = parameter<std::uint64_t*>(launch, 1);
  const auto words = parameter<std::uint64_t>(launch, 2);
  const auto* scratch = parameter<const gpu::FingerprintScratch*>(launch, 3);
  if (scratch->changed == 0) return;
  const std::uint64_t piece_words = gpu::words_of_piece(words);
  for (std::uint32_t piece = 0; piece < gpu::pieces_of(words); ++piece) {
    const std::uint64_t begin = piece * piece_words, end = std::min(words, begin + piece_words);
    if (scratch->piece_changed[piece] != 0) std::memcpy(slot + begin, frame + begin, (end - begin) * 8);
  }
}

[[maybe_unused]] const bool registered = [] {
  constexpr std::size_t kFingerprint[] = {8, 8, 8, 8, 4, 8};
  constexpr std::size_t kStore[] = {8, 8, 8, 8};
  return vmem_emu_register_kernel(gpu::kFingerprintKernel, fingerprint, kFingerprint, 6) == 0 &&
         vmem_emu_register_kernel(gpu::kStoreChangedKernel, store_changed, kStore, 4) == 0;
}();

}  // namespace
}  // namespace vmem::emu
