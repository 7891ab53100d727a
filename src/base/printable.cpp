#include "base/printable.hpp"

#include <fmt/format.h>

namespace vmem {
namespace {

bool is_control(unsigned char c) { return c < 0x20 || c == 0x7f; }

// The first boundary of a UTF-8 character from `at` on.
std::size_t character_at(std::string_view text, std::size_t at) {
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;
  return at;
}

void append(std::string& to, std::string_view text) {
  for (const char c : text) {
    if (c == '\n') {
      to += "\\n";
    } else if (is_control(static_cast<unsigned char>(c))) {
      to += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      to += c;
    }
  }
}

}  // namespace

std::string printable(std::string_view text, std::size_t most) {
  std::string result;
  if (text.size() <= most) {
    append(result, text);
    return result;
  }
  const std::size_t begin = character_at(text, most / 2), end = character_at(text, text.size() - most / 2);
  append(result, text.substr(0, begin));
  result += kLeftOut;
  append(result, text.substr(end));
  return result;
}

}  // namespace vmem
