// Zstandard, one frame per page: matches and an entropy coder, so that bytes of few distinct values
// shrink even without repeated sequences.
#pragma once

#include <string>

#include "compress/codec.hpp"

namespace vmem::compress {

class Zstd : public Codec {
 public:
  // Entropy coding with a minimal match search. On the exponents of a model's weights, which repeat
  // only by chance, level 1 shrinks less, takes three times as long, and decompresses at half the
  // speed (bench/micro).
  static constexpr int kHuffman = 0;
  static constexpr int kHighestLevel = 19;  // from 16 on, contexts take tens of MiB (64 MiB pages)
  static constexpr int kDefaultLevel = 3;

  explicit Zstd(int level);  // REQUIRES: kHuffman, or 1 to kHighestLevel
  CodecId id() const noexcept override;
  std::string_view name() const noexcept override { return name_; }
  Result<std::optional<std::size_t>> compress(std::span<const std::byte> in, std::span<std::byte> out,
                                              Workspace& workspace) const override;
  Status decompress(std::span<const std::byte> in, std::span<std::byte> out, Workspace& workspace) const override;

 private:
  int level_;
  std::string name_;
};

}  // namespace vmem::compress
