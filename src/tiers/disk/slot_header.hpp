// What stands before a page's bytes in a slot of a file: enough to tell, without this process's memory, which page it is, of which
// version, how its bytes are stored, and whether they are whole.
#pragma once

#include <optional>
#include <span>

#include "tiers/seal.hpp"

namespace vmem::tiers {

inline constexpr std::uint64_t kHeaderBytes = 4096;  // one block of any disk

struct StoredPage {
  PageIdentity identity;
  std::uint64_t stored_bytes = 0;  // in the slot, as the codec left them
  std::uint8_t codec = 0;          // 0: as they are
  Checksum checksum;               // of the bytes as they are
  bool operator==(const StoredPage&) const = default;
};

// Little-endian, as are all machines that CUDA runs on.
struct SlotHeader {
  std::uint64_t magic;
  std::uint32_t format;
  std::uint32_t codec;
  std::uint32_t home;
  std::uint32_t granule;
  std::uint64_t version;
  std::uint64_t bytes;
  std::uint64_t tenant;
  std::uint64_t stored_bytes;
  std::uint64_t checksum_low;
  std::uint64_t checksum_high;
  std::uint64_t header_checksum;  // of what stands before it
};
static_assert(sizeof(SlotHeader) == 80);

void write_header(const StoredPage& page, std::span<std::byte, kHeaderBytes> block);
// Nothing: the block is no header, or a damaged one.
std::optional<StoredPage> read_header(std::span<const std::byte, kHeaderBytes> block);

}  // namespace vmem::tiers
