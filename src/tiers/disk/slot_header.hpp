// The header before a page's bytes in a slot of a file. It identifies, without this process's
// memory, the page, its version and its stored form, and has a checksum to verify the bytes.
#pragma once

#include <optional>
#include <span>

#include "tiers/seal.hpp"

namespace vmem::tiers {

inline constexpr std::uint64_t kHeaderBytes = 4096;  // one block of any disk

struct StoredPage {
  PageIdentity identity;
  std::uint64_t stored_bytes = 0;  // in the slot, after the codec
  std::uint8_t codec = 0;          // 0: uncompressed
  Checksum checksum;               // of the uncompressed bytes
  bool operator==(const StoredPage&) const = default;
};

// Little-endian, like all machines that CUDA supports.
struct SlotHeader {
  std::uint64_t magic;
  std::uint32_t format;
  std::uint32_t codec;
  std::uint32_t granule;
  std::uint32_t reserved;  // 0
  std::uint64_t serial;
  std::uint64_t version;
  std::uint64_t bytes;
  std::uint64_t tenant;
  std::uint64_t stored_bytes;
  std::uint64_t checksum_low;
  std::uint64_t checksum_high;
  std::uint64_t header_checksum;  // of the fields before it
};
static_assert(sizeof(SlotHeader) == 88);

void write_header(const StoredPage& page, std::span<std::byte, kHeaderBytes> block);
// Nothing if the block is no header or its checksum mismatches.
std::optional<StoredPage> read_header(std::span<const std::byte, kHeaderBytes> block);

}  // namespace vmem::tiers
