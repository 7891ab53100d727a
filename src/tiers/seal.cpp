#include "tiers/seal.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <utility>

namespace vmem::tiers {

std::array<std::uint64_t, 5> words_of(const PageIdentity& identity) {
  return {std::to_underlying(identity.page.serial), identity.page.granule, identity.version, identity.bytes,
          identity.tenant};
}

Checksum seal(std::span<const std::byte> bytes, const PageIdentity& identity) {
  const auto words = words_of(identity);
  const XXH128_hash_t hash =
      XXH3_128bits_withSeed(bytes.data(), bytes.size(), XXH3_64bits(words.data(), sizeof(words)));
  return {hash.low64, hash.high64};
}

}  // namespace vmem::tiers
