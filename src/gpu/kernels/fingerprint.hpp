// Fingerprints of frames, for the GPU kernels and their host versions. A fingerprint is a sum over
// the frame's 64-bit words, so threads may add in any order. What a piece of the frame adds to the
// sum tells whether the piece has changed.
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

// A frame's pieces have 64 KiB, or more where that would make too many of them.
inline constexpr std::uint32_t kPiecesMax = 4096;
inline constexpr std::uint64_t kPieceWords = (std::uint64_t{64} << 10) / 8;
VMEM_KERNEL_SHARED std::uint64_t words_of_piece(std::uint64_t words) {
  const std::uint64_t least = (words + kPiecesMax - 1) / kPiecesMax;
  return least <= kPieceWords ? kPieceWords : (least + 1) / 2 * 2;
}
VMEM_KERNEL_SHARED std::uint32_t pieces_of(std::uint64_t words) {
  return static_cast<std::uint32_t>((words + words_of_piece(words) - 1) / words_of_piece(words));
}

// The state of a slot's bytes, in memory shared by host and GPU.
struct SlotRecord {
  Fingerprint last;           // of the bytes when they last equalled a frame's
  std::uint32_t changes = 0;  // how often vmem_fingerprint found a frame to differ
  std::uint32_t unused = 0;
  std::uint64_t changed_words = 0;  // in all of those, of the pieces that differed
};

// Per stream, in GPU memory; initially zero.
inline constexpr unsigned kFingerprintBlocks = 256;
struct FingerprintScratch {
  Fingerprint partial[kFingerprintBlocks];
  std::uint32_t blocks_done;
  std::uint32_t changed;
  unsigned long long changed_words;  // of the pieces, while blocks add them up
  std::uint8_t piece_changed[kPiecesMax];
};

// The kernels, in this order on one stream:
//   vmem_fingerprint(frame, words, record, scratch, compare, pieces): sets record->last to the
//     frame's fingerprint, and pieces[i] to what its i-th piece adds to that. If `compare` is set
//     and record->last was different, sets scratch->changed and counts the change in the record;
//     otherwise clears scratch->changed. scratch->piece_changed says the same of each piece.
//     `pieces` may be null: then each piece counts as changed.
//   vmem_store_changed(frame, slot, words, scratch): if scratch->changed, copies the pieces that
//     have changed to the slot.
inline constexpr const char* kFingerprintKernel = "vmem_fingerprint";
inline constexpr const char* kStoreChangedKernel = "vmem_store_changed";
inline constexpr unsigned kFingerprintThreads = 512;
// Each copies a piece at a time. Enough to fill the link where many pieces changed, few enough to
// leave the GPU to its owner.
inline constexpr unsigned kStoreBlocks = 64;

}  // namespace vmem::gpu
