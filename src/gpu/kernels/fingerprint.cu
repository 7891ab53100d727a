#include "gpu/kernels/fingerprint.hpp"

namespace vmem::gpu {
namespace {

// The sum over the thread block, in its first thread. All threads call it.
__device__ Fingerprint block_sum(Fingerprint mine) {
  __shared__ Fingerprint warps[kFingerprintThreads / 32];
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    mine.first += __shfl_down_sync(~0u, mine.first, lanes);
    mine.second += __shfl_down_sync(~0u, mine.second, lanes);
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x != 0) mine = {};
  for (unsigned i = 1; threadIdx.x == 0 && i < kFingerprintThreads / 32; ++i) {
    mine.first += warps[i].first;
    mine.second += warps[i].second;
  }
  __syncthreads();
  return mine;
}

__device__ void add(Fingerprint& sum, const Fingerprint& part) {
  sum.first += part.first;
  sum.second += part.second;
}

}  // namespace

// Each block sums up every gridDim.x-th piece.
extern "C" __global__ void __launch_bounds__(kFingerprintThreads)
    vmem_fingerprint(const ulonglong2* frame, std::uint64_t words, SlotRecord* record, FingerprintScratch* scratch,
                     std::uint32_t compare, Fingerprint* pieces) {
  const std::uint64_t piece_words = words_of_piece(words);
  const std::uint32_t count = pieces_of(words);
  Fingerprint block;
  std::uint64_t changed_words = 0;
  for (std::uint32_t piece = blockIdx.x; piece < count; piece += gridDim.x) {
    const std::uint64_t begin = piece * piece_words, end = min(words, begin + piece_words);
    Fingerprint mine;
    for (std::uint64_t i = begin / 2 + threadIdx.x; i < end / 2; i += blockDim.x) {
      const ulonglong2 pair = frame[i];
      add_word(mine, static_cast<std::uint32_t>(2 * i), pair.x);
      add_word(mine, static_cast<std::uint32_t>(2 * i + 1), pair.y);
    }
    mine = block_sum(mine);
    if (threadIdx.x != 0) continue;
    add(block, mine);
    const bool changed = compare != 0 && (pieces == nullptr || !same(mine, pieces[piece]));
    scratch->piece_changed[piece] = changed;
    if (changed) changed_words += end - begin;
    if (pieces != nullptr) pieces[piece] = mine;
  }
  if (threadIdx.x != 0) return;
  scratch->partial[blockIdx.x] = block;
  if (changed_words != 0) atomicAdd(&scratch->changed_words, changed_words);
  __threadfence();
  // The last block adds up the partial sums. atomicInc has wrapped the counter to 0 by then.
  if (atomicInc(&scratch->blocks_done, gridDim.x - 1) != gridDim.x - 1) return;
  __threadfence();
  Fingerprint total;
  for (unsigned i = 0; i < gridDim.x; ++i) {
    total.first += static_cast<volatile std::uint64_t&>(scratch->partial[i].first);
    total.second += static_cast<volatile std::uint64_t&>(scratch->partial[i].second);
  }
  const bool changed = compare != 0 && !same(total, record->last);
  scratch->changed = changed;
  record->last = total;
  changed_words = atomicExch(&scratch->changed_words, 0);
  if (!changed) return;
  // The host reads them in the other order.
  record->changed_words += changed_words;
  __threadfence_system();
  ++record->changes;
}

extern "C" __global__ void vmem_store_changed(const ulonglong2* frame, ulonglong2* slot, std::uint64_t words,
                                              const FingerprintScratch* scratch) {
  if (scratch->changed == 0) return;
  const std::uint64_t piece_words = words_of_piece(words);
  for (std::uint32_t piece = blockIdx.x; piece < pieces_of(words); piece += gridDim.x) {
    if (scratch->piece_changed[piece] == 0) continue;
    const std::uint64_t begin = piece * piece_words, end = min(words, begin + piece_words);
    for (std::uint64_t i = begin / 2 + threadIdx.x; i < end / 2; i += blockDim.x) slot[i] = frame[i];
  }
}

}  // namespace vmem::gpu
