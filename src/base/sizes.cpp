#include "base/sizes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <span>
#include <string>

namespace vmem {
namespace {

__extension__ typedef unsigned __int128 Wide;

struct Unit {
  std::string_view name;
  std::uint64_t factor;
};

// One letter means the binary unit, as in dd and ulimit: 16G is 16GiB.
constexpr std::array<Unit, 20> kByteUnits{{
    {"", 1},
    {"b", 1},
    {"kib", 1ull << 10},
    {"mib", 1ull << 20},
    {"gib", 1ull << 30},
    {"tib", 1ull << 40},
    {"pib", 1ull << 50},
    {"eib", 1ull << 60},
    {"k", 1ull << 10},
    {"m", 1ull << 20},
    {"g", 1ull << 30},
    {"t", 1ull << 40},
    {"p", 1ull << 50},
    {"e", 1ull << 60},
    {"kb", 1'000},
    {"mb", 1'000'000},
    {"gb", 1'000'000'000},
    {"tb", 1'000'000'000'000},
    {"pb", 1'000'000'000'000'000},
    {"eb", 1'000'000'000'000'000'000},
}};

constexpr std::array<Unit, 4> kTimeUnits{{{"us", 1}, {"ms", 1'000}, {"s", 1'000'000}, {"min", 60'000'000}}};

constexpr std::array<std::string_view, 7> kBinaryNames{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};

struct Kind {
  std::string_view noun;     // "a size"
  std::string_view example;  // "16GiB"
  std::string_view whole;    // "bytes"
  std::span<const Unit> units;
};
constexpr Kind kBytes{"a size", "16GiB or 16G, 512MiB, 2MB or 4096", "bytes", kByteUnits};
constexpr Kind kTime{"a duration", "250us, 100ms or 2s", "microseconds", kTimeUnits};

std::unexpected<Error> malformed(std::string_view text, const Kind& kind, std::string_view why) {
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("'{}' is not {}: {}; write it as {}", text, kind.noun, why, kind.example));
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view take_digits(std::string_view& text) {
  std::size_t count = 0;
  while (count < text.size() && is_digit(text[count])) ++count;
  const std::string_view digits = text.substr(0, count);
  text.remove_prefix(count);
  return digits;
}

// Every 64-bit number fits in 20 digits; Wide holds every 20-digit number times every factor.
constexpr std::size_t kMostDigits = 20;

Wide to_number(std::string_view digits) {
  Wide number = 0;
  for (const char c : digits) number = number * 10 + Wide(c - '0');
  return number;
}

const Unit* find_unit(std::string_view name, const Kind& kind) {
  std::string lower(name);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return char(std::tolower(c)); });
  const auto unit = std::ranges::find(kind.units, lower, &Unit::name);
  return unit == kind.units.end() ? nullptr : &*unit;
}

Result<std::uint64_t> parse(std::string_view text, const Kind& kind) {
  if (text.starts_with('-')) return malformed(text, kind, "it is negative");
  std::string_view rest = text;
  std::string_view whole = take_digits(rest);
  if (whole.empty()) return malformed(text, kind, "it does not start with a digit");
  std::string_view fraction;
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    fraction = take_digits(rest);
    if (fraction.empty()) return malformed(text, kind, "no digit follows the point");
  }
  while (rest.starts_with(' ')) rest.remove_prefix(1);
  while (whole.starts_with('0')) whole.remove_prefix(1);
  while (fraction.ends_with('0')) fraction.remove_suffix(1);

  const bool zero = whole.empty() && fraction.empty();
  const Unit* unit = zero && rest.empty() ? &kind.units.front() : find_unit(rest, kind);
  if (unit == nullptr) {
    return malformed(text, kind, rest.empty() ? "the unit is missing" : fmt::format("'{}' is no unit", rest));
  }
  if (whole.size() > kMostDigits) return malformed(text, kind, "it does not fit in 64 bits");
  if (fraction.size() > kMostDigits) return malformed(text, kind, "it has too many digits after the point");
  Wide scale = 1;
  for (std::size_t i = 0; i < fraction.size(); ++i) scale *= 10;
  // A fraction's numerator below 10^20 times a factor below 2^60 stays below 2^127.
  const Wide part = to_number(fraction) * unit->factor;
  if (part % scale != 0) return malformed(text, kind, fmt::format("it is not whole in {}", kind.whole));
  const Wide value = to_number(whole) * unit->factor + part / scale;
  if (value > std::numeric_limits<std::uint64_t>::max()) return malformed(text, kind, "it does not fit in 64 bits");
  return std::uint64_t(value);
}

}  // namespace

Result<std::uint64_t> parse_bytes(std::string_view text) { return parse(text, kBytes); }
Result<std::uint64_t> parse_duration_us(std::string_view text) { return parse(text, kTime); }

std::string format_bytes(std::uint64_t bytes) {
  std::size_t unit = 0;
  while (unit + 1 < kBinaryNames.size() && bytes >> (10 * (unit + 1)) != 0) ++unit;
  const std::uint64_t size = 1ull << (10 * unit);
  const Wide hundredths = Wide(bytes) * 100;
  if (bytes % size == 0) return fmt::format("{} {}", bytes / size, kBinaryNames[unit]);
  const double value = double(bytes) / double(size);
  if (hundredths % size == 0) {
    const int decimals = hundredths % (Wide(size) * 10) == 0 ? 1 : 2;
    return fmt::format("{:.{}f} {}", value, decimals, kBinaryNames[unit]);
  }
  if (value >= 1023.5 && unit + 1 < kBinaryNames.size()) return fmt::format("1.00 {}", kBinaryNames[unit + 1]);
  return fmt::format("{:.{}f} {}", value, value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2, kBinaryNames[unit]);
}

std::string exact_bytes(std::uint64_t bytes) {
  std::size_t unit = 0;
  while (bytes != 0 && unit + 1 < kBinaryNames.size() && bytes % (1ull << (10 * (unit + 1))) == 0) ++unit;
  return fmt::format("{}{}", bytes >> (10 * unit), kBinaryNames[unit]);
}

std::string exact_duration_us(std::uint64_t us) {
  if (us % 1'000'000 == 0) return fmt::format("{}s", us / 1'000'000);
  if (us % 1'000 == 0) return fmt::format("{}ms", us / 1'000);
  return fmt::format("{}us", us);
}

}  // namespace vmem
