// vmem cluster: a cluster on this machine, for trying it out.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string_view>

#include "base/counted.hpp"
#include "base/printable.hpp"
#include "base/sizes.hpp"
#include "bench/exit_code.hpp"
#include "runtime/assembly/machine.hpp"
#include "tools/cluster/claim.hpp"
#include "tools/cluster/start.hpp"
#include "tools/cluster/survey.hpp"
#include "tools/commands.hpp"

namespace vmem::tools {
namespace {

using namespace local_cluster;

struct Arguments {
  std::string folder;  // "": the usual one
  StartOptions start;
  bool json = false, address = false;

  std::string path() const { return folder.empty() ? Folder::usual_path() : folder; }
};

constexpr int kExitNotWhole = 1;  // of status

// A message may have several lines: those of a log come last.
int refuse(const char* command, const Error& error) {
  std::string_view rest = error.message;
  for (bool first = true; first || !rest.empty(); first = false) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    fmt::print(stderr, "{}{}\n", first ? fmt::format("vmem cluster {}: ", command) : "  ", printable(line, 4000));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
  }
  return error.status == VMEM_ERROR_INVALID_OPTION ? bench::kExitBadOptions : bench::kExitFailed;
}

// For commands that the user is to type.
std::string with_folder(const Arguments& arguments, const char* command, const Folder& folder) {
  return fmt::format("vmem cluster {}{}", command,
                     arguments.folder.empty() ? "" : fmt::format(" --dir {}", quote(folder.path())));
}

// " and 64 MiB of HBM of GPU 0"; several loans are joined by "or".
std::string hbm_words(const std::vector<runtime::HbmLoan>& loans) {
  if (loans.empty()) return "";
  std::vector<std::string> words;
  for (const runtime::HbmLoan& loan : loans)
    words.push_back(fmt::format("{} of HBM of GPU {}", format_bytes(loan.bytes), loan.ordinal));
  return fmt::format(" and {}", fmt::join(words, " or "));
}

void say_up(const Arguments& arguments, const Folder& folder, const State& state) {
  const std::uint64_t copies = arguments.start.copies_bytes;
  fmt::print("vmem cluster: {} of {} {} up, {} with {} of memory{}{}\n", counted(state.nodes, "node", "nodes"),
             state.address, state.nodes == 1 ? "is" : "are", state.nodes == 1 ? "it" : "each",
             format_bytes(state.memory_bytes), hbm_words(arguments.start.hbm),
             copies == 0 ? "" : fmt::format(" and {} for copies", format_bytes(copies)));
  fmt::print("  to use it:  vmem run --cluster {} -- PROGRAM\n", state.address);
  fmt::print("          or  export VMEM_CLUSTER={}\n", state.address);
  fmt::print("  to look:    {}\n", with_folder(arguments, "status", folder));
  fmt::print("  to end it:  {}\n", with_folder(arguments, "down", folder));
  fmt::print("  logs:       {}\n", folder.file("*.log"));
}

int up(const Arguments& arguments) {
  const std::uint64_t available = runtime::available_host_bytes();
  if (const Status good = check_options(arguments.start, available); !good) return refuse("up", good.error());
  const auto etcd = find_etcd();
  if (!etcd) return refuse("up", etcd.error());
  const Interrupts interrupts;
  const auto claimed = claim(arguments.path());
  if (!claimed) return refuse("up", claimed.error());
  if (!claimed->ended.empty())
    fmt::print(stderr, "vmem cluster up: ended what was left of an earlier cluster: {}\n",
               fmt::join(claimed->ended, ", "));
  Surroundings surroundings;
  surroundings.vmem = std::filesystem::canonical("/proc/self/exe").string();
  surroundings.etcd = *etcd;
  surroundings.available_bytes = available;
  const auto state = Start(claimed->folder, arguments.start, std::move(surroundings), interrupts).run();
  if (!state) return refuse("up", state.error());
  say_up(arguments, claimed->folder, *state);
  std::fflush(stdout);
  // A signal that came after the last look is late: the cluster is up.
  (void)interrupts.pause(std::chrono::milliseconds(0));
  return bench::kExitOk;
}

int say_none(const char* command, const Arguments& arguments, int code) {
  fmt::print(stderr, "vmem cluster {}: no cluster is up in {}\n", command, printable(arguments.path()));
  return code;
}

int down(const Arguments& arguments) {
  const auto folder = Folder::find_locked(arguments.path());
  if (!folder) return refuse("down", folder.error());
  if (!*folder) return say_none("down", arguments, bench::kExitOk);
  const auto state = read_state(**folder);
  if (!state) return refuse("down", state.error());
  if (!*state) {
    const auto removed = remove_unwritten(**folder);
    return removed ? say_none("down", arguments, bench::kExitOk) : refuse("down", removed.error());
  }
  const auto stopped = stop(**folder, **state);
  if (!stopped) return refuse("down", stopped.error());
  fmt::print("vmem cluster: {} ended{}\n", counted(stopped->ended.size(), "process has", "processes have"),
             stopped->killed.empty()
                 ? ""
                 : fmt::format(", {} by SIGKILL: SIGTERM was not enough", fmt::join(stopped->killed, ", ")));
  return bench::kExitOk;
}

int status(const Arguments& arguments) {
  const auto folder = Folder::find(arguments.path());
  if (!folder) return refuse("status", folder.error());
  if (!*folder) return say_none("status", arguments, kExitNotWhole);
  const auto state = read_state(**folder);
  if (!state) return refuse("status", state.error());
  if (!*state) return say_none("status", arguments, kExitNotWhole);
  const Survey found = survey(**state);
  if (arguments.address)
    fmt::print("{}\n", (*state)->address);
  else if (arguments.json)
    fmt::print("{}\n", json_of(found).dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  else
    fmt::print("{}", text_of(found));
  return found.whole() ? bench::kExitOk : kExitNotWhole;
}

void add_folder(CLI::App& command, Arguments& arguments) {
  command
      .add_option("--dir", arguments.folder,
                  "The cluster's folder (default: vmem-cluster in $XDG_RUNTIME_DIR, else /tmp/vmem-cluster-UID)")
      ->type_name("DIR")
      ->check([](const std::string& text) { return text.empty() ? "'' is a folder without a name" : ""; });
}

void add_size(CLI::App& command, const std::string& flag, std::uint64_t& to, const std::string& help) {
  const auto take = [&to, flag](const std::string& text) {
    const auto bytes = parse_bytes(text);
    if (!bytes) throw CLI::ValidationError(flag, bytes.error().message);
    to = *bytes;
  };
  command.add_option_function<std::string>(flag, take, fmt::format("{} (default: {})", help, exact_bytes(to)))
      ->type_name("SIZE");
}

CLI::App* add_up(CLI::App& app, Arguments& arguments) {
  CLI::App* const command =
      app.add_subcommand("up", "Start etcd and daemons on 127.0.0.1, which run on in the background");
  command->add_option("--nodes", arguments.start.nodes, fmt::format("How many daemons, from 1 to {}", kMostNodes))
      ->type_name("N")
      ->capture_default_str();
  add_size(*command, "--memory", arguments.start.memory_bytes, "How much memory each of them lends");
  add_size(*command, "--copies", arguments.start.copies_bytes,
           "How much memory copies of published regions may take at each of them; 0: they take none");
  const auto take_loan = [&loans = arguments.start.hbm](const std::string& text) {
    auto loan = runtime::parse_hbm_loan(text);
    if (!loan) throw CLI::ValidationError("--hbm", loan.error().message);
    loans.push_back(*loan);
  };
  command
      ->add_option_function<std::vector<std::string>>(
          "--hbm", [take_loan](const std::vector<std::string>& texts) { std::ranges::for_each(texts, take_loan); },
          "How much HBM each of them lends, of which GPU, such as 0:4GiB; for several GPUs 0:4GiB,1:4GiB, which the "
          "daemons take in turn (default: none)")
      ->type_name("GPU:SIZE")
      ->delimiter(',');
  command->add_option("--name", arguments.start.name, "The cluster's name")->type_name("NAME")->capture_default_str();
  add_folder(*command, arguments);
  command->footer(
      "The daemons take other options, such as VMEM_SECRET and VMEM_LOG, from the environment. A signal while it works "
      "takes all down again.");
  return command;
}

CLI::App* add_status(CLI::App& app, Arguments& arguments) {
  CLI::App* const command = app.add_subcommand("status", "Say which of its processes live, and what they lend");
  add_folder(*command, arguments);
  auto* const json = command->add_flag("--json", arguments.json, "As JSON");
  command->add_flag("--address", arguments.address, "Only its address, as VMEM_CLUSTER takes it")->excludes(json);
  command->footer("Exit code 1: no cluster is up, or not all of it; also with --address.");
  return command;
}

}  // namespace

Command add_cluster(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  const CLI::App* const starts = add_up(app, *arguments);
  CLI::App* const ends = app.add_subcommand("down", "End its processes, and remove its files");
  add_folder(*ends, *arguments);
  add_status(app, *arguments);
  app.require_subcommand(1);
  app.footer(
      "For trying it out: anybody on this machine can reach its etcd.\nExit codes: 0 done; 2 bad options, or it is up "
      "already; 3 a process failed, or a signal came.");
  return [arguments, starts, ends] {
    if (starts->parsed()) return up(*arguments);
    return ends->parsed() ? down(*arguments) : status(*arguments);
  };
}

}  // namespace vmem::tools
