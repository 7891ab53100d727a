// LZ4's block format: a very fast search for repeated bytes, without an entropy coder.
#pragma once

#include <string>

#include "compress/codec.hpp"

namespace vmem::compress {

class Lz4 : public Codec {
 public:
  // A higher acceleration searches fewer positions: faster, fewer matches. The decoder is the same.
  static constexpr int kMostAcceleration = 16;

  explicit Lz4(int acceleration);  // REQUIRES: 1 to kMostAcceleration
  CodecId id() const noexcept override;
  std::string_view name() const noexcept override { return name_; }
  Result<std::optional<std::size_t>> compress(std::span<const std::byte> in, std::span<std::byte> out,
                                              Workspace& workspace) const override;
  Status decompress(std::span<const std::byte> in, std::span<std::byte> out, Workspace& workspace) const override;

 private:
  int acceleration_;
  std::string name_;
};

}  // namespace vmem::compress
