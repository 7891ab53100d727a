// Zstandard, one frame a page: matches and an entropy coder, so bytes of few values shrink although none repeat.
#pragma once

#include <string>

#include "compress/codec.hpp"

namespace vmem::compress {

class Zstd : public Codec {
 public:
  // Entropy coding without a search for matches but in the most obvious places. On the exponents of a model's weights, which repeat only by
  // chance, level 1 shrinks less and takes three times as long, and reads at half the speed (bench/micro).
  static constexpr int kHuffman = 0;
  static constexpr int kHighestLevel = 19;  // from 16 on a context takes tens of MiB (64 MiB pages)
  static constexpr int kDefaultLevel = 3;

  explicit Zstd(int level);  // kHuffman, or 1 to kHighestLevel
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
