// All codecs, by the id in a header and by the name in an option.
//
//   id          name
//   0           none
//   1 .. 16     lz4, lz4-2 .. lz4-16 (acceleration)
//   17          no codec: a page of one repeated word (fill.hpp)
//   31          zstd-huffman
//   32 .. 50    zstd-1 .. zstd-19; zstd is zstd-3
//   + 64, 128, 192: with prefix shuffle2+, shuffle4+, shuffle8+ (not none)
//
// Codecs live until the process ends. Any thread may call.
#pragma once

#include <span>
#include <string_view>

#include "compress/codec.hpp"

namespace vmem::compress {

// In order of their ids.
std::span<const Codec* const> all_codecs();

// Errors: UNSUPPORTED (unknown id: a damaged header, or one of a newer version).
Result<const Codec*> find(CodecId id);

struct Setting {
  const Codec* codec = nullptr;  // null: "auto", chosen for each page (chooser.hpp)
};
// A codec's name, "zstd", or "auto". Errors: INVALID_OPTION, with the choices and the nearest name.
Result<Setting> parse_setting(std::string_view name);

}  // namespace vmem::compress
