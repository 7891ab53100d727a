// Fingerprints of frames: what the GPU kernels and their host twins share. A fingerprint is a sum over the frame's 64-bit words, so
// threads may add in any order.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define VMEM_KERNEL_SHARED __host__ __device__ inline
#else
#define VMEM_KERNEL_SHARED inline
#endif

namespace vmem::gpu {

// Two sums of products of a word's halves, each masked by the word's place, as in the NH hash. Its masks must be independent of each
// other: were they linear in the place, words that change places in step would cancel.
struct Fingerprint {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
};

VMEM_KERNEL_SHARED bool same(const Fingerprint& a, const Fingerprint& b) {
  return a.first == b.first && a.second == b.second;
}

// The product of a word's halves, masked by those of `mask`.
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

// What is known of a slot's bytes, in memory that host and GPU share.
struct SlotRecord {
  Fingerprint last;           // of the bytes when they were last equal to a frame's
  std::uint32_t changes = 0;  // how often vmem_store_changed found a frame to differ
  std::uint32_t unused[3] = {};
};

// Of one stream, in GPU memory; zero at first.
inline constexpr unsigned kFingerprintBlocks = 256;
struct FingerprintScratch {
  Fingerprint partial[kFingerprintBlocks];
  std::uint32_t blocks_done;
  std::uint32_t changed;
};

// The kernels, in this order on one stream:
//   vmem_fingerprint(frame, words, record, scratch, compare): sets record->last to the frame's fingerprint; with `compare`, and if it
//     was another, sets scratch->changed and counts it in the record, else clears scratch->changed
//   vmem_store_changed(frame, slot, words, scratch): if scratch->changed, copies the frame to the slot
inline constexpr const char* kFingerprintKernel = "vmem_fingerprint";
inline constexpr const char* kStoreChangedKernel = "vmem_store_changed";
inline constexpr unsigned kFingerprintThreads = 512;
inline constexpr unsigned kStoreBlocks =
    64;  // enough to fill the link, and little enough to leave the GPU to its owner

}  // namespace vmem::gpu
