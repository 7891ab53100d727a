#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/options.hpp"
#include "bench/exit_code.hpp"
#include "tools/commands.hpp"

namespace vmem::tools {
namespace {

void print_json() {
  auto options = nlohmann::json::array();
  for (const OptionDefinition& option : option_table())
    options.push_back({{"name", option.name},
                       {"flag", option_flag(option)},
                       {"environment", option_environment(option)},
                       {"default", option.default_value},
                       {"values", option_values(option)},
                       {"switch", option.is_switch},
                       {"help", option.help}});
  fmt::print("{}\n", options.dump(2));
}

void print_text() {
  fmt::print("Options of the runtime: for vmem_init by name, or as environment variables.\n\n");
  for (const OptionDefinition& option : option_table())
    fmt::print("{:<14} {}\n{:<14}   {}; default {}\n{:<14}   {}\n", option.name, option.help, "", option_values(option),
               option.default_value, "", option_environment(option));
}

}  // namespace

Command add_options(CLI::App& app) {
  const auto json = std::make_shared<bool>(false);
  app.add_flag("--json", *json, "As JSON, on standard output");
  return [json] {
    *json ? print_json() : print_text();
    return static_cast<int>(bench::kExitOk);
  };
}

}  // namespace vmem::tools
