// Makes outside text (an option's value, a path) safe for one-line messages. Control characters
// would break the line or move the terminal's cursor; very long text would hide the reason.
#pragma once

#include <string>
#include <string_view>

namespace vmem {

inline constexpr std::string_view kLeftOut = " [...] ";

// Writes control characters as \n or \x1b; drops the middle of text longer than `most` bytes.
std::string printable(std::string_view text, std::size_t most = 256);

}  // namespace vmem
