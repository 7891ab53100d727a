#include "base/option_parse.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/printable.hpp"
#include "base/sizes.hpp"

namespace vmem {
namespace {

constexpr std::uint64_t kLongestWaitUs = 3'600'000'000;

}  // namespace

Status refuse_value(std::string_view name, std::string_view accepted, std::string_view value, std::string_view why) {
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("option {}='{}': {}; accepted: {}", name, printable(value, 128), printable(why), accepted));
}

Result<std::uint64_t> parse_size(std::string_view text, const SizeLimits& limits) {
  VMEM_ASSIGN(const std::uint64_t bytes, parse_bytes(text));
  std::string why;
  if (bytes < limits.least) why = fmt::format("less than {}", format_bytes(limits.least));
  if (bytes > limits.most) why = fmt::format("more than {}", format_bytes(limits.most));
  if (bytes % limits.multiple != 0) why = fmt::format("not a multiple of {}", format_bytes(limits.multiple));
  if (!why.empty()) return fail(VMEM_ERROR_INVALID_OPTION, why);
  return bytes;
}

Result<std::uint64_t> parse_count(std::string_view text, std::uint64_t most) {
  std::uint64_t count = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (text.starts_with('-')) return fail(VMEM_ERROR_INVALID_OPTION, "negative");
  if (error == std::errc::result_out_of_range || (error == std::errc() && count > most)) {
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("more than {}", most));
  }
  if (error != std::errc() || stop != text.data() + text.size()) {
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("'{}' is not a whole number", text));
  }
  return count;
}

Result<bool> parse_switch(std::string_view text) {
  if (text == "on" || text == "off") return text == "on";
  return fail(VMEM_ERROR_INVALID_OPTION, "neither on nor off");
}

Result<std::uint64_t> parse_wait(std::string_view text) {
  VMEM_ASSIGN(const std::uint64_t us, parse_duration_us(text));
  if (us > kLongestWaitUs) return fail(VMEM_ERROR_INVALID_OPTION, "longer than an hour");
  return us;
}

Result<std::uint64_t> parse_long_wait(std::string_view text) {
  VMEM_ASSIGN(const std::uint64_t us, parse_wait(text));
  if (us < 100'000) return fail(VMEM_ERROR_INVALID_OPTION, "shorter than 100ms");
  return us;
}

std::vector<std::string_view> split_at_commas(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace vmem
