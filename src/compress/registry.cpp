#include "compress/registry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/option.hpp"
#include "compress/lz4.hpp"
#include "compress/none.hpp"
#include "compress/shuffle.hpp"
#include "compress/zstd.hpp"

namespace vmem::compress {
namespace {

constexpr std::array<std::size_t, 3> kWidths{2, 4, 8};

class Registry {
 public:
  Registry() {
    add(std::make_unique<None>());
    for (int acceleration = 1; acceleration <= Lz4::kMostAcceleration; ++acceleration) {
      add_shuffled(std::make_unique<Lz4>(acceleration));
    }
    for (int level = Zstd::kHuffman; level <= Zstd::kHighestLevel; ++level) add_shuffled(std::make_unique<Zstd>(level));
    for (const Codec* codec : by_id_) {
      if (codec != nullptr) all_.push_back(codec);
    }
  }
  std::span<const Codec* const> all() const { return all_; }
  const Codec* find(CodecId id) const { return by_id_[std::uint8_t(id)]; }

 private:
  const Codec& add(std::unique_ptr<Codec> codec) {
    by_id_[std::uint8_t(codec->id())] = codec.get();
    owned_.push_back(std::move(codec));
    return *owned_.back();
  }
  void add_shuffled(std::unique_ptr<Codec> codec) {
    const Codec& inner = add(std::move(codec));
    for (const std::size_t width : kWidths) add(std::make_unique<Shuffle>(width, inner));
  }

  std::vector<std::unique_ptr<Codec>> owned_;
  std::array<const Codec*, 256> by_id_{};
  std::vector<const Codec*> all_;
};

// Never destroyed: other threads may still use it during static destruction.
const Registry& registry() {
  static const Registry* const made = new Registry;
  return *made;
}

std::unexpected<Error> unknown(std::string_view name) {
  std::vector<std::string> known{"auto", "zstd"};
  for (const Codec* codec : registry().all()) known.emplace_back(codec->name());
  return fail(
      VMEM_ERROR_INVALID_OPTION,
      fmt::format("there is no codec '{}'; there are auto, none, lz4 and lz4-2 to lz4-{}, zstd and zstd-1 to zstd-{}, "
                  "zstd-huffman, and each of lz4 and zstd behind shuffle2+, shuffle4+ or shuffle8+; "
                  "the nearest is {}",
                  name, Lz4::kMostAcceleration, Zstd::kHighestLevel, nearest_name(name, known)));
}

// E.g. "shuffle4+zstd" → "shuffle4+zstd-3".
std::string full_name(std::string_view name) {
  const bool bare = name == "zstd" || name.ends_with("+zstd");
  return bare ? fmt::format("{}-{}", name, Zstd::kDefaultLevel) : std::string(name);
}

}  // namespace

std::span<const Codec* const> all_codecs() { return registry().all(); }

Result<const Codec*> find(CodecId id) {
  if (const Codec* codec = registry().find(id)) return codec;
  return fail(
      VMEM_ERROR_UNSUPPORTED,
      fmt::format("no codec has the id {}: the header is damaged, or a newer version wrote it", std::uint8_t(id)));
}

Result<Setting> parse_setting(std::string_view name) {
  if (name == "auto") return Setting{};
  const auto codec = std::ranges::find(all_codecs(), std::string_view(full_name(name)), &Codec::name);
  if (codec == all_codecs().end()) return unknown(name);
  return Setting{*codec};
}

}  // namespace vmem::compress
