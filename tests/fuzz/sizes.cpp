// Sizes and durations as users write them.
#include "base/sizes.hpp"

#include "fuzz/input.hpp"

namespace vmem {
namespace {

using fuzz::require;

void check_number(std::uint64_t number) {
  require(parse_bytes(exact_bytes(number)).value_or(~number) == number, "a size is printed exactly");
  require(parse_duration_us(exact_duration_us(number)).value_or(~number) == number, "a duration is printed exactly");
  require(!format_bytes(number).empty() && format_bytes(number).size() <= 11, "a size for people is short");
}

void check_text(std::string_view text) {
  for (const auto parse : {parse_bytes, parse_duration_us}) {
    const auto number = parse(text);
    if (number) check_number(*number);
    require(number || !number.error().message.empty(), "a refusal says why");
  }
}

}  // namespace
}  // namespace vmem

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  vmem::fuzz::Input input(data, size);
  if (input.flag()) {
    vmem::check_number(input.take<std::uint64_t>());
  } else {
    vmem::check_text(input.text());
  }
  return 0;
}
