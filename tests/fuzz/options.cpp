// Options: each by its name, and all together from the environment and the caller.
#include "runtime/options/options.hpp"

#include <bit>

#include "fuzz/input.hpp"

extern char** environ;

namespace vmem {
namespace {

using fuzz::Input;
using fuzz::require;

void check_refusal(const Error& error) {
  require(error.status == VMEM_ERROR_INVALID_OPTION && !error.message.empty(), "a refusal says why");
}

// An accepted value is printed as a value of the same meaning.
void check_value(const OptionDefinition& option, std::string_view value) {
  Options options, again;
  if (const Status parsed = option.parse(options, value); !parsed) return check_refusal(parsed.error());
  const std::string printed = option.print(options);
  require(option.parse(again, printed).has_value(), "what an option prints is accepted");
  require(option.print(again) == printed, "what an option prints means the same");
}

// Replaces the environment with these variables until destruction.
class Environment {
 public:
  explicit Environment(std::vector<std::string>& variables) : before_(environ) {
    for (std::string& each : variables) entries_.push_back(each.data());
    entries_.push_back(nullptr);
    environ = entries_.data();
  }
  ~Environment() { environ = before_; }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::vector<char*> entries_;
  char** before_;
};

// Lines: VMEM_NAME=VALUE sets a variable; the caller gives every other line.
void check_all(std::string_view text) {
  std::vector<std::string> variables;
  std::vector<std::pair<std::string, std::string>> given;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::size_t equals = line.find('=');
    if (line.starts_with("VMEM_")) {
      variables.emplace_back(line);
    } else if (equals != std::string_view::npos) {
      given.emplace_back(line.substr(0, equals), line.substr(equals + 1));
    }
  }
  const Environment environment(variables);
  const auto options = resolve_options(given);
  if (!options) return check_refusal(options.error());
  require(options->base + options->space_bytes <= std::uint64_t{1} << 47, "the space lies in user addresses");
  require(!options->hbm_bytes || *options->hbm_bytes >= kSmallestHbm, "HBM has its least size");
  require(!options->page_bytes || std::has_single_bit(*options->page_bytes), "a page is a power of two");
  require(options->replicas == 1 || options->remote.size() >= options->replicas, "replicas have nodes");
  for (const OptionDefinition& each : option_table()) check_value(each, each.print(*options));
}

}  // namespace
}  // namespace vmem

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  vmem::fuzz::Input input(data, size);
  const auto table = vmem::option_table();
  const std::size_t option = input.below(2 * vmem::option_table().size());
  if (option < table.size()) {
    vmem::check_value(table[option], input.text());
  } else {
    vmem::check_all(input.text());
  }
  return 0;
}
