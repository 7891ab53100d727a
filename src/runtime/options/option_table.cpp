#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <iterator>
#include <vector>

#include "runtime/options/options.hpp"

namespace vmem {
namespace {

template <class Group>
void append(std::vector<Option<Group>> group, std::vector<OptionDefinition>& table) {
  std::ranges::transform(group, std::back_inserter(table), widen<Options, Group>);
}

std::vector<OptionDefinition> make_table() {
  std::vector<OptionDefinition> table;
  append(space_options(), table);
  append(mover_options(), table);
  append(host_options(), table);
  append(peer_options(), table);
  append(disk_options(), table);
  append(compress_options(), table);
  append(remote_options(), table);
  append(driver_options(), table);
  append(launch_options(), table);
  append(topology_options(), table);
  append(trace_options(), table);
  append(log_options(), table);
  return table;
}

}  // namespace

std::span<const OptionDefinition> option_table() {
  static const std::vector<OptionDefinition> table = make_table();
  return table;
}

std::string option_flag(const OptionDefinition& option) {
  std::string flag = "--" + option.name;
  std::ranges::replace(flag, '_', '-');
  return flag;
}

std::string option_environment(const OptionDefinition& option) {
  std::string variable = "VMEM_";
  for (const unsigned char c : option.name) variable += char(std::toupper(c));
  return variable;
}

std::string option_values(const OptionDefinition& option) {
  return option.only_with.empty() ? option.values : fmt::format("{}; only with {}", option.values, option.only_with);
}

std::optional<std::string> option_in_environment(const OptionDefinition& option) {
  const char* const value = ::getenv(option_environment(option).c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace vmem
