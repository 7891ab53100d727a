// Byte planes before another codec: splits every block of a page into planes, and compresses each
// plane separately, or stores it uncompressed if it does not shrink. Reading mantissas costs a
// copy.
//
// Format: for each plane of each block, a 4-byte little-endian header (the plane's stored length;
// highest bit set: uncompressed) and the plane; at the end the page's incomplete element, if any.
#pragma once

#include <string>

#include "compress/codec.hpp"

namespace vmem::compress {

class Shuffle : public Codec {
 public:
  // A block and its planes (twice this) stay in L2, and planes are long enough for inner codecs to
  // be effective.
  static constexpr std::size_t kBlockBytes = std::size_t{256} << 10;

  // `width`: bytes of an element. REQUIRES: 2, 4 or 8; `inner` is no Shuffle and outlives this.
  Shuffle(std::size_t width, const Codec& inner);
  CodecId id() const noexcept override;
  std::string_view name() const noexcept override { return name_; }
  Result<std::optional<std::size_t>> compress(std::span<const std::byte> in, std::span<std::byte> out,
                                              Workspace& workspace) const override;
  Status decompress(std::span<const std::byte> in, std::span<std::byte> out, Workspace& workspace) const override;

 private:
  Result<std::optional<std::size_t>> compress_plane(std::span<const std::byte> plane, std::span<std::byte> out,
                                                    Workspace& workspace) const;
  // Removes a stored plane from the front of `in`. Returns its bytes: in `room`, or in `in` if they
  // were stored uncompressed.
  Result<const std::byte*> take_plane(std::span<const std::byte>& in, std::span<std::byte> room,
                                      Workspace& workspace) const;

  std::size_t width_;
  const Codec& inner_;
  std::string name_;
};

}  // namespace vmem::compress
