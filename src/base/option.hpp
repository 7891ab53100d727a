// One setting of a program. A module keeps its settings in a plain struct (its group) and lists an
// Option for each field; runtime/options joins the groups.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.hpp"

namespace vmem {

template <class Group>
struct Option {
  // "acquire_wait", as in vmem_option; the flag is --acquire-wait, the variable VMEM_ACQUIRE_WAIT
  std::string name;
  std::string values;          // accepted values, in words
  std::string only_with = {};  // required options, in words; "": none
  std::string help;            // one sentence
  // Checks and stores. The error names option, value and accepted values.
  std::function<Status(Group&, std::string_view)> parse = {};
  std::function<std::string(const Group&)> print = {};
  bool is_switch = false;  // on or off: the flag alone means on

  // As a user writes it: the value of the field's initialiser.
  std::string default_value() const { return print(Group{}); }
};

// The same setting as one of `Whole`, a struct derived from the group.
template <class Whole, class Group>
Option<Whole> widen(Option<Group> option) {
  return {.name = std::move(option.name),
          .values = std::move(option.values),
          .only_with = std::move(option.only_with),
          .help = std::move(option.help),
          .parse = std::move(option.parse),
          .print = std::move(option.print),
          .is_switch = option.is_switch};
}

// The `known` name with the fewest edits to `name`, ignoring case; "" if `known` is empty.
std::string nearest_name(std::string_view name, std::span<const std::string> known);

}  // namespace vmem
