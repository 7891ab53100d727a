#include "bench/second_node.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "base/sizes.hpp"

namespace vmem::bench {
namespace {

constexpr std::chrono::seconds kStart{20};
// A warning may precede the ready line.
constexpr std::string_view kReady = "vmem daemon: node ", kBefore = "listens on ";

}  // namespace

std::string vmem_program() {
  std::error_code none;
  const std::filesystem::path self = std::filesystem::canonical("/proc/self/exe", none);
  if (self.filename() == "vmem") return self.string();
  const auto beside = self.parent_path() / "vmem";
  return std::filesystem::is_regular_file(beside, none) ? beside.string() : "vmem";
}

Result<SecondNode> SecondNode::start(const Settings& settings, std::uint64_t lend_bytes) {
  VMEM_ASSIGN(const Options options, options_named(settings, {"remote_channels", "secret", "certificates"}));
  const auto or_off = [](const std::string& path) { return path.empty() ? "off" : path; };
  std::vector<std::string> command{vmem_program(),   "daemon",
                                   "--listen",       "127.0.0.1:0",
                                   "--lend",         std::to_string(lend_bytes),
                                   "--secret",       or_off(options.secret),
                                   "--certificates", or_off(options.certificates)};
  if (options.remote_channels) command.insert(command.end(), {"--channels", std::to_string(*options.remote_channels)});
  VMEM_ASSIGN(auto process, ChildProcess::start(command));
  auto line = process->line_beginning(kReady, kStart);
  if (line && line->find(kBefore) != std::string::npos) {
    const auto at = line->find(kBefore) + kBefore.size();
    return SecondNode(std::move(process), line->substr(at, line->find(' ', at) - at));
  }
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("no second node that lends {} could be started: {}; `vmem daemon --lend {}` has to run here, "
                          "and say why",
                          format_bytes(lend_bytes), line ? *line : line.error().message, lend_bytes));
}

}  // namespace vmem::bench
