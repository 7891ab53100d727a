// The seal binds bytes to their page: a checksum over the bytes, seeded with the page's identity.
// It is computed when a page leaves memory that the GPU can address, and checked at every later
// hop, so that a torn, flipped, stale or misdirected copy is never accepted as the page. It
// protects against faults, not attackers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "pagetable/types.hpp"

namespace vmem::tiers {

struct PageIdentity {
  pagetable::PageKey page;
  std::uint64_t version = 0;
  std::uint64_t bytes = 0;
  std::uint64_t tenant = 0;
  bool operator==(const PageIdentity&) const = default;
};

struct Checksum {
  std::uint64_t low = 0, high = 0;
  bool operator==(const Checksum&) const = default;
};

// The identity in the form that checksums and codes cover.
std::array<std::uint64_t, 5> words_of(const PageIdentity& identity);

// XXH3, 128 bits.
Checksum seal(std::span<const std::byte> bytes, const PageIdentity& identity);

}  // namespace vmem::tiers
