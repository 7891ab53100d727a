// What can be drawn where a descriptor leads.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace vmem {

// dumb: a terminal that would show control sequences as text.
enum class Terminal : std::uint8_t { none, dumb, full };

inline Terminal terminal_of(int descriptor) {
  if (::isatty(descriptor) != 1) return Terminal::none;
  const char* const kind = std::getenv("TERM");
  return kind == nullptr || *kind == '\0' || std::string_view(kind) == "dumb" ? Terminal::dumb : Terminal::full;
}

}  // namespace vmem
