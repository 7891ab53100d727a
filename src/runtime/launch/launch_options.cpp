#include "runtime/launch/launch_options.hpp"

#include <fmt/format.h>

#include "base/option_parse.hpp"

namespace vmem {
namespace {

constexpr std::uint64_t kLongestWindow = 1023;  // number of launches that PointerTables remembers

Option<LaunchOptions> strict_option() {
  return switch_option({.name = "strict",
                        .help = "Under `vmem run`: a launch can reach only what vmem sees it name, one launch at a "
                                "time; for checking a program."},
                       &LaunchOptions::strict);
}

Option<LaunchOptions> drained_option() {
  return switch_option(
      {.name = "drained",
       .help = "Under `vmem run`: every launch can reach everything, and pages move only while none runs; "
               "for programs that reach what they do not name. Slow."},
      &LaunchOptions::drained);
}

Option<LaunchOptions> window_option() {
  return define({.name = "window",
                 .values = "0 to 1023 launches",
                 .help = "Under `vmem run`: how many launches back a pointer table in memory may have been filled.",
                 .print = [](const LaunchOptions& options) { return fmt::to_string(options.window); }},
                &LaunchOptions::window, [](std::string_view text) -> Result<std::uint32_t> {
                  VMEM_ASSIGN(const std::uint64_t launches, parse_count(text, kLongestWindow));
                  return std::uint32_t(launches);
                });
}

}  // namespace

std::vector<Option<LaunchOptions>> launch_options() { return {strict_option(), drained_option(), window_option()}; }

}  // namespace vmem
