// Fingerprints of frames, for the GPU kernels and their host versions. A fingerprint is a sum over
// the frame's 64-bit words, so threads may add in any order.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define VMEM_KERNEL_SHARED __host__ __device__ inline
#else
#define VMEM_KERNEL_SHARED inline
#endif

namespace vmem::gpu {

// Two sums of products of a word's halves, masked according to the word's index, as in the NH hash.
// The masks must be independent of each other: with masks linear in the index, words that change
// places in step would cancel.
struct Fingerprint {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
};

VMEM_KERNEL_SHARED bool same(const Fingerprint& a, const Fingerprint& b) {
  return a.first == b.first && a.second == b.second;
}

// The product of a word's halves, each masked by adding the same half of `mask`.
VMEM_KERNEL_SHARED std::uint64_t masked_product(std::uint64_t word, std::uint64_t mask) {
  const auto low = static_cast<std::uint32_t>(word) + static_cast<std::uint32_t>(mask);
  const auto high = static_cast<std::uint32_t>(word >> 32) + static_cast<std::uint32_t>(mask >> 32);
  return static_cast<std::uint64_t>(low) * high;
}

VMEM_KERNEL_SHARED void add_word(Fingerprint& sum, std::uint32_t index, std::uint64_t word) {
  std::uint64_t mask = (std::uint64_t{index} + 1) * 0x9e3779b97f4a7c15u;
  mask = (mask ^ (mask >> 32)) * 0xd6e8feb86659fd93u;
  mask ^= mask >> 32;
  sum.first += masked_product(word, mask);
  mask *= 0xbf58476d1ce4e5b9u;
  sum.second += masked_product(word, mask ^ (mask >> 31));
}

// The state of a slot's bytes, in memory shared by host and GPU.
struct SlotRecord {
  Fingerprint last;           // of the bytes when they last equalled a frame's
  std::uint32_t changes = 0;  // how often vmem_fingerprint found a frame to differ
  std::uint32_t unused[3] = {};
};

// Per stream, in GPU memory; initially zero.
inline constexpr unsigned kFingerprintBlocks = 256;
struct FingerprintScratch {
  Fingerprint partial[kFingerprintBlocks];
  std::uint32_t blocks_done;
  std::uint32_t changed;
};

// The kernels, in this order on one stream:
//   vmem_fingerprint(frame, words, record, scratch, compare): sets record->last to the frame's
//     fingerprint. If `compare` is set and record->last was different, sets scratch->changed and
//     increments record->changes; otherwise clears scratch->changed.
//   vmem_store_changed(frame, slot, words, scratch): if scratch->changed, copies the frame to the
//     slot.
inline constexpr const char* kFingerprintKernel = "vmem_fingerprint";
inline constexpr const char* kStoreChangedKernel = "vmem_store_changed";
inline constexpr unsigned kFingerprintThreads = 512;
// Enough blocks to fill the link, few enough to leave the GPU to its owner.
inline constexpr unsigned kStoreBlocks = 64;

}  // namespace vmem::gpu
