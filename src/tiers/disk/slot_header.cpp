#include "tiers/disk/slot_header.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstddef>
#include <cstring>
#include <utility>

namespace vmem::tiers {
namespace {

constexpr std::uint64_t kMagic = 0x31544f4c534d4d56;  // "VMMSLOT1"
constexpr std::uint32_t kFormat = 2;

std::uint64_t checksum_of(const SlotHeader& header) {
  return XXH3_64bits(&header, offsetof(SlotHeader, header_checksum));
}

}  // namespace

void write_header(const StoredPage& page, std::span<std::byte, kHeaderBytes> block) {
  SlotHeader header{};
  header.magic = kMagic;
  header.format = kFormat;
  header.codec = page.codec;
  header.serial = std::to_underlying(page.identity.page.serial);
  header.granule = page.identity.page.granule;
  header.version = page.identity.version;
  header.bytes = page.identity.bytes;
  header.tenant = page.identity.tenant;
  header.stored_bytes = page.stored_bytes;
  header.checksum_low = page.checksum.low;
  header.checksum_high = page.checksum.high;
  header.header_checksum = checksum_of(header);
  std::memcpy(block.data(), &header, sizeof(header));
  std::memset(block.data() + sizeof(header), 0, block.size() - sizeof(header));
}

std::optional<StoredPage> read_header(std::span<const std::byte, kHeaderBytes> block) {
  SlotHeader header;
  std::memcpy(&header, block.data(), sizeof(header));
  const bool ours = header.magic == kMagic && header.format == kFormat && header.codec <= 0xff && header.reserved == 0;
  if (!ours || header.header_checksum != checksum_of(header)) return std::nullopt;
  StoredPage page;
  const pagetable::PageKey key{pagetable::Serial{header.serial}, header.granule};
  page.identity = {key, header.version, header.bytes, header.tenant};
  page.stored_bytes = header.stored_bytes;
  page.codec = std::uint8_t(header.codec);
  page.checksum = {header.checksum_low, header.checksum_high};
  return page;
}

}  // namespace vmem::tiers
