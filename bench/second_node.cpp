#include "bench/second_node.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <csignal>
#include <filesystem>

namespace vmem::bench {
namespace {

constexpr std::chrono::seconds kStart{20};
// A warning may precede the ready line.
constexpr std::string_view kReady = "vmem daemon: node ", kBefore = "listens on ";
// What it says on SIGUSR1: the first number, and what is before the second.
constexpr std::string_view kSends = "vmem daemon: of HBM, ", kStaged = "directly and ";

}  // namespace

std::string vmem_program() {
  std::error_code none;
  const std::filesystem::path self = std::filesystem::canonical("/proc/self/exe", none);
  if (self.filename() == "vmem") return self.string();
  const auto beside = self.parent_path() / "vmem";
  return std::filesystem::is_regular_file(beside, none) ? beside.string() : "vmem";
}

Result<SecondNode> SecondNode::start(const Settings& settings, std::uint64_t lend_bytes) {
  return start(settings, {"--lend", std::to_string(lend_bytes)});
}

Result<SecondNode> SecondNode::start_with_hbm(const Settings& settings, const Gpu& gpu, std::uint64_t lend_bytes) {
  const std::string driver = gpu.emulated() ? "emulated" : settings.driver;
  return start(settings, {"--hbm", fmt::format("{}:{}", gpu.ordinal(), lend_bytes), "--driver", driver});
}

Result<SecondNode> SecondNode::start_in(const std::string& cluster, const Settings& settings,
                                        std::uint64_t lend_bytes) {
  return start(settings, {"--lend", std::to_string(lend_bytes), "--cluster", cluster});
}

Result<SecondNode> SecondNode::start(const Settings& settings, const std::vector<std::string>& what) {
  VMEM_ASSIGN(const Options options, options_named(settings, {"remote_channels", "secret", "certificates", "fabric"}));
  const auto or_off = [](const std::string& path) { return path.empty() ? "off" : path; };
  std::vector<std::string> command{vmem_program(),   "daemon",
                                   "--listen",       "127.0.0.1:0",
                                   "--secret",       or_off(options.secret),
                                   "--certificates", or_off(options.certificates),
                                   "--fabric",       options.fabric.empty() ? "off" : "ucx:" + options.fabric};
  command.insert(command.end(), what.begin(), what.end());
  if (options.remote_channels) command.insert(command.end(), {"--channels", std::to_string(*options.remote_channels)});
  VMEM_ASSIGN(auto process, ChildProcess::start(command));
  auto line = process->line_beginning(kReady, kStart);
  if (line && line->find(kBefore) != std::string::npos) {
    const auto at = line->find(kBefore) + kBefore.size();
    return SecondNode(std::move(process), line->substr(at, line->find(' ', at) - at));
  }
  const std::string asked = fmt::format("vmem daemon {}", fmt::join(what, " "));
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("no second node could be started: {}; `{}` has to run here, and say why",
                          line ? *line : line.error().message, asked));
}

Result<SecondNode::HbmSends> SecondNode::hbm_sends() const {
  (void)::kill(process_->id(), SIGUSR1);
  VMEM_ASSIGN(const std::string line, process_->next_line_beginning(kSends, kStart));
  HbmSends sends;
  const char* const end = line.data() + line.size();
  const auto direct = std::from_chars(line.data() + kSends.size(), end, sends.direct);
  const auto at = line.find(kStaged);
  if (direct.ec == std::errc{} && at != std::string::npos &&
      std::from_chars(line.data() + at + kStaged.size(), end, sends.staged).ec == std::errc{})
    return sends;
  return fail(VMEM_ERROR_DRIVER, fmt::format("the daemon says \"{}\" of its HBM, which has no numbers", line));
}

}  // namespace vmem::bench
