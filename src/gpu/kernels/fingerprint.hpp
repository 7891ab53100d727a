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

// Two sums of products of a word's halves, each masked by the word's place (as in the NH hash). One product fails to see a change
// of one half when the other half plus its mask is zero; both fail for about one change in 2^64.
struct Fingerprint {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
};

VMEM_KERNEL_SHARED bool same(const Fingerprint& a, const Fingerprint& b) {
  return a.first == b.first && a.second == b.second;
}

VMEM_KERNEL_SHARED void add_word(Fingerprint& sum, std::uint32_t index, std::uint64_t word) {
  const auto low = static_cast<std::uint32_t>(word);
  const auto high = static_cast<std::uint32_t>(word >> 32);
  sum.first += static_cast<std::uint64_t>(low + index * 0x9e3779b1u + 0x27d4eb2fu) * (high + index * 0x85ebca77u + 1u);
  sum.second += static_cast<std::uint64_t>(low + index * 0xc2b2ae3du + 3u) * (high + index * 0x165667b1u + 0x9e3779b1u);
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
