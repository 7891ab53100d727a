// Readers of option values, and options made of them.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/option.hpp"
#include "base/sizes.hpp"

namespace vmem {

struct SizeLimits {
  std::uint64_t least = 0;
  std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t multiple = 1;
};

// Each error says what is wrong with the text; `define` adds option and accepted values.
Result<std::uint64_t> parse_size(std::string_view text, const SizeLimits& limits);
Result<std::uint64_t> parse_count(std::string_view text, std::uint64_t most);
Result<bool> parse_switch(std::string_view text);         // "on" or "off"
Result<std::uint64_t> parse_wait(std::string_view);       // microseconds, up to an hour
Result<std::uint64_t> parse_long_wait(std::string_view);  // from 100 ms
std::vector<std::string_view> split_at_commas(std::string_view text);

// The error of a value that an option does not accept.
Status refuse_value(std::string_view name, std::string_view accepted, std::string_view value, std::string_view why);

// Binds a reader of values to a field.
template <class Group, class T, class Read>
Option<Group> define(std::type_identity_t<Option<Group>> option, T Group::* field, Read read) {
  option.parse = [name = option.name, accepted = option.values, field, read](Group& group,
                                                                             std::string_view text) -> Status {
    auto value = read(text);
    if (!value) return refuse_value(name, accepted, text, value.error().message);
    group.*field = *std::move(value);
    return {};
  };
  return option;
}

template <class Group>
Option<Group> switch_option(std::type_identity_t<Option<Group>> option, bool Group::* field) {
  option.values = "on or off";
  option.is_switch = true;
  option.print = [field](const Group& group) { return group.*field ? "on" : "off"; };
  return define(std::move(option), field, parse_switch);
}

template <class Group>
Option<Group> size_option(std::type_identity_t<Option<Group>> option, std::uint64_t Group::* field, SizeLimits limits) {
  option.print = [field](const Group& group) { return exact_bytes(group.*field); };
  return define(std::move(option), field, [limits](std::string_view text) { return parse_size(text, limits); });
}

// "auto" leaves the field empty.
template <class Group>
Option<Group> automatic_size_option(std::type_identity_t<Option<Group>> option,
                                    std::optional<std::uint64_t> Group::* field, SizeLimits limits) {
  option.print = [field](const Group& group) { return group.*field ? exact_bytes(*(group.*field)) : "auto"; };
  return define(std::move(option), field, [limits](std::string_view text) -> Result<std::optional<std::uint64_t>> {
    if (text == "auto") return std::nullopt;
    return parse_size(text, limits);
  });
}

}  // namespace vmem
