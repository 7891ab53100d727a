// Byte planes in front of another codec: every block of a page is split, and each of its planes compressed by itself, or stored as it is
// if that makes it no smaller. So mantissas cost no more than a copy when they are read.
//
// As stored: for each block, for each plane of it, 4 bytes (little-endian: the plane's stored length; the highest bit says that it is
// stored as it is) and the plane; at the end the bytes of the page that are no whole element.
#pragma once

#include <string>

#include "compress/codec.hpp"

namespace vmem::compress {

class Shuffle : public Codec {
 public:
  // A block and its planes stay in L2 (twice this), and planes are long enough for inner codecs to get going.
  static constexpr std::size_t kBlockBytes = std::size_t{256} << 10;

  // `width`: 2, 4 or 8, bytes of an element. `inner` outlives this.
  Shuffle(std::size_t width, const Codec& inner);
  CodecId id() const noexcept override;
  std::string_view name() const noexcept override { return name_; }
  Result<std::optional<std::size_t>> compress(std::span<const std::byte> in, std::span<std::byte> out,
                                              Workspace& workspace) const override;
  Status decompress(std::span<const std::byte> in, std::span<std::byte> out, Workspace& workspace) const override;

 private:
  Result<std::optional<std::size_t>> compress_plane(std::span<const std::byte> plane, std::span<std::byte> out,
                                                    Workspace& workspace) const;
  // Takes a stored plane off the front of `in`; returns where its bytes are, which is `room` unless it was stored as it is.
  Result<const std::byte*> take_plane(std::span<const std::byte>& in, std::span<std::byte> room,
                                      Workspace& workspace) const;

  std::size_t width_;
  const Codec& inner_;
  std::string name_;
};

}  // namespace vmem::compress
