// Fills a region with a pattern that depends on the offset, and checks every byte afterwards.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "bench/context.hpp"
#include "bench/runtime.hpp"

namespace vmem::bench {

// Result words in plain GPU memory, written by kernels and read back after the stream is
// synchronised.
class ResultWords {
 public:
  static Result<ResultWords> create(const Gpu& gpu, unsigned count);
  std::uint64_t* device() const { return reinterpret_cast<std::uint64_t*>(memory_.get()); }
  Status clear(CUstream stream, std::uint8_t byte = 0) const;   // queued
  Status read(const Stream& stream, std::uint64_t* out) const;  // waits for the stream

 private:
  ResultWords(const Gpu& gpu, DeviceMemory memory, unsigned count)
      : gpu_(&gpu), memory_(std::move(memory)), count_(count) {}
  const Gpu* gpu_;
  DeviceMemory memory_;
  unsigned count_;
};

// Bytes per acquire: --chunk, else the region's page.
std::uint64_t chunk_bytes(const Settings& settings, const Region& region);

// Calls piece(offset, bytes) for the whole region in chunks, with the progress bar.
template <class Piece>
Status for_each_chunk(Context& context, const Region& region, Piece&& piece) {
  const std::uint64_t chunk = chunk_bytes(context.settings, region);
  for (std::uint64_t offset = 0; offset < region.bytes(); offset += chunk) {
    const std::uint64_t bytes = std::min(chunk, region.bytes() - offset);
    VMEM_TRY(piece(offset, bytes));
    context.progress.advance(bytes);
  }
  return {};
}

// Fills by a kernel, chunk by chunk, and waits for the end.
Status fill_region(Context& context, const Region& region, const Stream& stream, std::uint64_t seed);

// Compares every word with the pattern plus `delta` on the GPU, and a few pages also through
// vmem_read. Returns an empty string if all match, else a sentence with the first bad offset.
Result<std::string> verify_region(Context& context, const Region& region, const Stream& stream, std::uint64_t seed,
                                  std::uint64_t delta);

// The checksum of `words` words of the pattern; computed on all cores.
std::uint64_t expected_checksum(std::uint64_t seed, std::uint64_t words);
// The checksum that the random kernel must find.
std::uint64_t expected_random(std::uint64_t pattern_seed, std::uint64_t lines, std::uint64_t reads,
                              std::uint64_t read_seed);

// Compares a checksum from the GPU with the expected one; if they differ, looks for the first bad
// word.
Result<std::string> explain_checksum(Context& context, const Region& region, const Stream& stream, std::uint64_t seed,
                                     std::uint64_t found, std::uint64_t expected);

}  // namespace vmem::bench
