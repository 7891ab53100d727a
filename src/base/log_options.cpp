#include "base/log_options.hpp"

#include "base/log.hpp"
#include "base/option_parse.hpp"

namespace vmem {
namespace {

Result<std::string> parse_log(std::string_view text) {
  VMEM_TRY(log::parse_level(text));
  return std::string(text);
}

Option<LogOptions> log_option() {
  return define({.name = "log",
                 .values = "trace, debug, info, warn, error or off",
                 .help = "Messages of this level and above go to stderr.",
                 .print = [](const LogOptions& options) { return options.log_level; }},
                &LogOptions::log_level, parse_log);
}

}  // namespace

std::vector<Option<LogOptions>> log_options() { return {log_option()}; }

}  // namespace vmem
