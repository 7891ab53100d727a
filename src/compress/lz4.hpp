// LZ4's block format: about as fast as anything that looks for repeated bytes can be, and it has no entropy coder.
#pragma once

#include <string>

#include "compress/codec.hpp"

namespace vmem::compress {

class Lz4 : public Codec {
 public:
  // The higher, the fewer places are searched: faster, and fewer matches. All are read by the same decoder.
  static constexpr int kMostAcceleration = 16;

  explicit Lz4(int acceleration);  // 1 to kMostAcceleration
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
