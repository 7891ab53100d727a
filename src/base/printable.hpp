// Text from outside (an option's value, a path) in messages, which are one line: control characters would break it or move
// the terminal's cursor, and what is very long would push the reason out.
#pragma once

#include <string>
#include <string_view>

namespace vmem {

inline constexpr std::string_view kLeftOut = " [...] ";

// Control characters as \n or \x1b; of more than `most` bytes the middle is left out.
std::string printable(std::string_view text, std::size_t most = 256);

}  // namespace vmem
