// The identity codec, for pages that do not compress.
#pragma once

#include "compress/codec.hpp"

namespace vmem::compress {

class None : public Codec {
 public:
  CodecId id() const noexcept override { return kNone; }
  std::string_view name() const noexcept override { return "none"; }
  Result<std::optional<std::size_t>> compress(std::span<const std::byte> in, std::span<std::byte> out,
                                              Workspace& workspace) const override;
  Status decompress(std::span<const std::byte> in, std::span<std::byte> out, Workspace& workspace) const override;
};

}  // namespace vmem::compress
