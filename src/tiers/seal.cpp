#include "tiers/seal.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>

namespace vmem::tiers {

Checksum seal(std::span<const std::byte> bytes, const PageIdentity& identity) {
  const std::array<std::uint64_t, 4> words{std::uint64_t{identity.page.home} << 32 | identity.page.granule,
                                           identity.version, identity.bytes, identity.tenant};
  const XXH128_hash_t hash =
      XXH3_128bits_withSeed(bytes.data(), bytes.size(), XXH3_64bits(words.data(), sizeof(words)));
  return {hash.low64, hash.high64};
}

}  // namespace vmem::tiers
