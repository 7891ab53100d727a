// Data read from a disk or another node: slot headers, and compressed pages of every codec.
#include <vector>

#include "fuzz/input.hpp"
#include "tiers/disk/page_codec.hpp"
#include "tiers/disk/slot_header.hpp"

namespace vmem::tiers {
namespace {

using fuzz::ConstBytes;
using fuzz::equal;
using fuzz::Input;
using fuzz::require;
using Block = std::array<std::byte, kHeaderBytes>;

constexpr std::size_t kWord = sizeof(std::uint64_t);

void check_header(Input& input) {
  Block block{}, written;
  std::ranges::copy(input.bytes(block.size()), block.begin());
  const auto page = read_header(block);
  if (!page) return;
  write_header(*page, written);
  require(equal(ConstBytes(block).first(sizeof(SlotHeader)), ConstBytes(written).first(sizeof(SlotHeader))),
          "what was read is written the same");
}

void check_written_header(Input& input) {
  StoredPage page{.identity = {{pagetable::Serial{input.take<std::uint64_t>()}, input.take<std::uint32_t>()}}};
  page.identity.version = input.take<std::uint64_t>();
  page.identity.bytes = input.take<std::uint64_t>();
  page.identity.tenant = input.take<std::uint64_t>();
  page.stored_bytes = input.take<std::uint64_t>();
  page.codec = input.take<std::uint8_t>();
  page.checksum = {input.take<std::uint64_t>(), input.take<std::uint64_t>()};
  Block block;
  write_header(page, block);
  require(read_header(block) == page, "what was written is read the same");
  block[input.take<std::uint8_t>() % sizeof(SlotHeader)] ^= std::byte{1};
  require(!read_header(block), "a damaged header is found");
}

// Decodes twice, over different bytes: the result must not depend on the old contents of the page.
Result<std::vector<std::byte>> decode(compress::CodecId codec, ConstBytes stored, std::size_t bytes) {
  static compress::Workspace workspace;
  static PageCodec pages({.on = true, .codec = nullptr, .now_ns = [] { return std::uint64_t{1}; }}, kHeaderBytes);
  // Of exact size, so that AddressSanitizer detects reads past the end.
  const std::vector<std::byte> exact(stored.begin(), stored.end());
  std::vector<std::byte> first(bytes, std::byte{0x00}), second(bytes, std::byte{0xff});
  for (std::vector<std::byte>* const page : {&first, &second}) {
    VMEM_TRY(pages.decode({.stored = exact, .page = *page, .codec = codec}, workspace));
  }
  require(first == second, "a page that is decoded is decoded as a whole");
  return first;
}

void check_stored(Input& input) {
  const auto codec = input.take<compress::CodecId>();
  // Pages are whole words. Shuffled pages of several blocks are slow, so most pages are small.
  const std::size_t words = input.take<std::uint16_t>() >> (input.below(8) == 7 ? 0 : 7);
  const auto page = decode(codec, input.rest(), words * kWord);
  require(page || !page.error().message.empty(), "a refusal says why");
}

// Compressed data, intact or damaged. Slow codecs write the same format as the fast ones of their
// kind.
void check_compressed(Input& input) {
  static compress::Workspace workspace;
  constexpr std::string_view kFast[] = {"none", "lz4", "lz4-16", "zstd-huffman", "zstd-1", "zstd-3"};
  static const std::string shuffles[] = {"", "shuffle2+", "shuffle4+", "shuffle8+"};
  const std::string name = shuffles[input.below(4)] + std::string(kFast[input.below(std::size(kFast))]);
  const auto setting = compress::parse_setting(name);
  if (!setting) return;  // "none" is not shuffled
  const std::size_t damaged_at = input.take<std::uint16_t>();
  const auto damage = input.take<std::byte>();
  const std::size_t repeats = 1 + input.below(64);
  const ConstBytes part = input.rest();
  std::vector<std::byte> page;
  for (std::size_t i = 0; i < repeats; ++i) page.insert(page.end(), part.begin(), part.end());
  std::vector<std::byte> stored(page.size() + 1024);
  const auto bytes = setting->codec->compress(page, stored, workspace);
  require(bytes && *bytes, "a page with room to spare can be compressed");
  stored.resize(**bytes);
  const bool damages = damaged_at < stored.size() && damage != std::byte{};
  if (damages) stored[damaged_at] ^= damage;
  const auto decoded = decode(setting->codec->id(), stored, page.size());
  require(damages || (decoded && *decoded == page), "a page comes back as it was");
}

}  // namespace
}  // namespace vmem::tiers

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  vmem::fuzz::Input input(data, size);
  switch (input.below(4)) {
    case 0:
      vmem::tiers::check_header(input);
      break;
    case 1:
      vmem::tiers::check_written_header(input);
      break;
    case 2:
      vmem::tiers::check_stored(input);
      break;
    default:
      vmem::tiers::check_compressed(input);
  }
  return 0;
}
