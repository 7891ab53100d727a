#include "pagetable/space_options.hpp"

#include <fmt/format.h>

#include <charconv>

#include "base/option_parse.hpp"

namespace vmem {
namespace {

constexpr std::uint64_t kMiB = 1ull << 20;
constexpr std::uint64_t kGiB = 1ull << 30;
constexpr std::uint64_t kTiB = 1ull << 40;
constexpr std::uint64_t kGranule = 2ull << 20;
constexpr std::uint64_t kMaxAddress = 1ull << 47;

Result<std::uint64_t> parse_address(std::string_view text) {
  std::uint64_t address = 0;
  const char* const end = text.data() + text.size();
  const bool prefixed = text.starts_with("0x") || text.starts_with("0X");
  const char* const digits = text.data() + (prefixed ? 2 : 0);
  const auto [stop, error] = std::from_chars(digits, end, address, 16);
  if (!prefixed || error != std::errc() || stop != end)
    return fail(VMEM_ERROR_INVALID_OPTION, "not a hexadecimal address");
  if (address % kGranule != 0) return fail(VMEM_ERROR_INVALID_OPTION, "not aligned to 2 MiB");
  if (address < 4 * kGiB) return fail(VMEM_ERROR_INVALID_OPTION, "below 4 GiB, where programs are loaded");
  if (address >= kMaxAddress) return fail(VMEM_ERROR_INVALID_OPTION, "beyond the 47-bit limit of user addresses");
  return address;
}

Option<SpaceOptions> base_option() {
  return define(
      {.name = "base",
       .values = "a hexadecimal address from 0x100000000, 2 MiB aligned; base + space end at 0x800000000000 or below",
       .help =
           "First address of the address space; a hint on a single node. In a cluster, if neither base nor space is "
           "given, 0x110000000000.",
       .print = [](const SpaceOptions& options) { return fmt::format("{:#x}", options.base); }},
      &SpaceOptions::base, parse_address);
}

Option<SpaceOptions> space_option() {
  return size_option(
      {.name = "space",
       .values = "a multiple of 2MiB from 64MiB to 64TiB",
       .help = "Size of the address space: the most that can be allocated at once. In a cluster, if neither base "
               "nor space is given, 64 TiB."},
      &SpaceOptions::space_bytes, {.least = 64 * kMiB, .most = 64 * kTiB, .multiple = kGranule});
}

}  // namespace

std::vector<Option<SpaceOptions>> space_options() { return {base_option(), space_option()}; }

}  // namespace vmem
