#include "tools/cluster/start.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/counted.hpp"
#include "base/sizes.hpp"
#include "cluster/registry/etcd/address.hpp"
#include "pagetable/types.hpp"
#include "runtime/cluster/node_list.hpp"
#include "runtime/remote/daemon.hpp"
#include "tools/cluster/survey.hpp"

namespace vmem::tools::local_cluster {
namespace {

using std::chrono::steady_clock;

constexpr int kPortTries = 3;
constexpr std::size_t kLogLines = 6;
constexpr std::chrono::milliseconds kPause{20};
constexpr std::uint64_t kAnswerUs = 1'000'000;  // of etcd, to one question

std::unexpected<Error> refuse(std::string why) { return fail(VMEM_ERROR_INVALID_OPTION, std::move(why)); }

std::string address_of(std::uint16_t port, const std::string& name) {
  return fmt::format("etcd://127.0.0.1:{}/{}", port, name);
}

bool is_listed(const std::vector<runtime::ClusterNode>& nodes, const ManagedProcess& process) {
  return std::ranges::any_of(nodes, [&](const auto& node) { return is_node_of(node, process); });
}

}  // namespace

Status check_options(const StartOptions& options, std::uint64_t available_bytes) {
  if (options.nodes < 1 || options.nodes > kMostNodes)
    return refuse(fmt::format("--nodes {}: accepted: 1 to {}", options.nodes, kMostNodes));
  if (options.memory_bytes < pagetable::kGranuleBytes)
    return refuse(fmt::format("--memory {}: memory is lent in units of {}; give at least that",
                              exact_bytes(options.memory_bytes), format_bytes(pagetable::kGranuleBytes)));
  if (options.copies_bytes != 0 && options.copies_bytes < pagetable::kGranuleBytes)
    return refuse(fmt::format("--copies {}: pages have at least {}; give at least that",
                              exact_bytes(options.copies_bytes), format_bytes(pagetable::kGranuleBytes)));
  if (options.hbm.size() > options.nodes)
    return refuse(fmt::format("--hbm says {} times what a node lends, for {}; give --nodes {}, or fewer",
                              options.hbm.size(), counted(options.nodes, "node", "nodes"), options.hbm.size()));
  const std::uint64_t staging = options.hbm.empty() ? 0 : runtime::kDaemonStagingBytes;
  const std::uint64_t share = available_bytes / options.nodes, each = share - std::min(share, staging);
  if (options.memory_bytes > each || options.copies_bytes > each - options.memory_bytes)
    return refuse(fmt::format(
        "{}--memory {} for each of {} nodes asked for, {} are available on this machine{}; give "
        "at most {} together, or fewer --nodes",
        options.copies_bytes == 0 ? "" : fmt::format("--copies {} and ", format_bytes(options.copies_bytes)),
        format_bytes(options.memory_bytes), options.nodes, format_bytes(available_bytes),
        staging == 0 ? "" : fmt::format(", and with --hbm each takes {} for the way to HBM", format_bytes(staging)),
        exact_bytes(each >> 20 << 20)));
  if (const auto parsed = vmem::cluster::parse_etcd_address(address_of(1, options.name));
      !parsed || parsed->cluster != options.name)
    return refuse(fmt::format("--name '{}': accepted: letters, digits, '.', '_' and '-'", options.name));
  return {};
}

Start::Start(const Folder& folder, StartOptions options, Surroundings surroundings, const Interrupts& interrupts)
    : folder_(folder), options_(std::move(options)), surroundings_(std::move(surroundings)), interrupts_(interrupts) {
  state_.boot = this_boot();
  state_.nodes = options_.nodes;
  state_.memory_bytes = options_.memory_bytes;
  state_.made_folder = folder_.is_new();
}

Result<State> Start::run() {
  if (const Status started = start_all(); !started) return std::unexpected(take_back(started.error()));
  return state_;
}

Status Start::start_all() {
  VMEM_TRY(check_options(options_, surroundings_.available_bytes));
  VMEM_TRY(check_files());
  VMEM_TRY(start_etcd());
  VMEM_TRY(start_daemons());
  VMEM_TRY(wait_for_members());
  VMEM_TRY(interrupts_.pause(std::chrono::milliseconds(0)));  // a signal since the last pause
  state_.started = true;
  return write_state(folder_, state_);
}

// Files of others are neither written nor, later, removed.
Status Start::check_files() const {
  for (const std::string& name : own_files(options_.nodes))
    if (folder_.has(name))
      return refuse(
          fmt::format("{} exists, and is of no cluster that `vmem cluster` knows; remove it, or give --dir "
                      "another folder",
                      folder_.file(name)));
  return {};
}

// A port may be taken between its choice and its use.
Status Start::start_etcd() {
  for (int tries = 1;; ++tries) {
    VMEM_ASSIGN(const bool answers, try_etcd());
    if (answers) return {};
    if (tries == kPortTries)
      return fail(VMEM_ERROR_DRIVER,
                  with_log(fmt::format("other processes took etcd's ports {} times, at last {} or {}; run it again",
                                       kPortTries, state_.client_port, state_.peer_port),
                           kEtcdName));
    for (const std::string& name : own_files(0)) VMEM_TRY(folder_.remove(name));
    state_.processes.clear();
  }
}

// False if it ended because another process has one of its ports.
Result<bool> Start::try_etcd() {
  VMEM_ASSIGN(const EtcdPorts ports, surroundings_.choose_ports());
  state_.client_port = ports.client;
  state_.peer_port = ports.peer;
  state_.address = address_of(ports.client, options_.name);
  VMEM_TRY(launch(kEtcdName, etcd_command(surroundings_.etcd, folder_, ports)));
  const Status answers = wait_for_etcd();
  if (answers) return true;
  if (lives(state_.processes.front().id) || !says_port_in_use(folder_.last_lines(log_of(kEtcdName), kLogLines)))
    return std::unexpected(answers.error());
  return false;
}

Status Start::wait_for_etcd() const {
  const auto end = steady_clock::now() + surroundings_.etcd_limit;
  for (;;) {
    // Asked only where somebody listens: the registry would log a warning.
    const bool answers =
        listens(state_.client_port) && runtime::list_nodes({state_.address, ""}, kAnswerUs).has_value();
    // First: who answers may be another process, which has the port.
    VMEM_TRY(check_processes());
    if (answers) return {};
    if (steady_clock::now() > end)
      return fail(VMEM_ERROR_TIMEOUT, with_log(fmt::format("etcd does not answer at 127.0.0.1:{} within {} ms",
                                                           state_.client_port, surroundings_.etcd_limit.count()),
                                               kEtcdName));
    VMEM_TRY(interrupts_.pause(kPause));
  }
}

Status Start::start_daemons() {
  for (std::uint32_t number = 1; number <= options_.nodes; ++number)
    VMEM_TRY(launch(node_name(number), daemon_command(number)));
  return {};
}

Status Start::wait_for_members() const {
  const auto end = steady_clock::now() + surroundings_.daemons_limit;
  for (;;) {
    VMEM_TRY(check_processes());
    const auto nodes = runtime::list_nodes({state_.address, ""}, kAnswerUs);
    const auto missing = std::ranges::find_if(state_.processes.begin() + 1, state_.processes.end(),
                                              [&](const auto& each) { return !nodes || !is_listed(*nodes, each); });
    if (missing == state_.processes.end()) return {};
    if (steady_clock::now() > end)
      return fail(VMEM_ERROR_TIMEOUT, with_log(fmt::format("{} is not a member within {} ms{}", missing->name,
                                                           surroundings_.daemons_limit.count(),
                                                           nodes ? "" : fmt::format(" ({})", nodes.error().message)),
                                               missing->name));
    VMEM_TRY(interrupts_.pause(kPause));
  }
}

// A daemon says in the registry where it listens, so it takes any port.
LaunchCommand Start::daemon_command(std::uint32_t number) const {
  LaunchCommand command{
      .words = {surroundings_.vmem, "daemon", "--listen", "127.0.0.1:0", "--lend", exact_bytes(options_.memory_bytes),
                "--cluster", state_.address, "--label", fmt::format("node={}", node_name(number))},
      .environment = environment()};
  if (options_.copies_bytes != 0)
    command.words.insert(command.words.end(), {"--copies", exact_bytes(options_.copies_bytes)});
  if (const auto hbm = options_.hbm_of(number))
    command.words.insert(command.words.end(), {"--hbm", fmt::format("{}:{}", hbm->ordinal, exact_bytes(hbm->bytes))});
  return command;
}

Status Start::launch(const std::string& name, const LaunchCommand& command) {
  if (!recorded_) VMEM_TRY(write_state(folder_, state_));  // before any other file
  recorded_ = true;
  VMEM_ASSIGN(const FileDescriptor log, folder_.make_log(log_of(name)));
  VMEM_ASSIGN(Launch launch, Launch::prepare(command, log));
  state_.processes.push_back({.name = name, .id = launch.process(), .command = command.words});
  VMEM_TRY(write_state(folder_, state_));
  return launch.let_go();
}

Status Start::check_processes() const {
  const auto ended = std::ranges::find_if(state_.processes, [](const auto& each) { return !lives(each.id); });
  if (ended == state_.processes.end()) return {};
  return fail(VMEM_ERROR_DRIVER, with_log(fmt::format("{} has ended", ended->name), ended->name));
}

std::string Start::with_log(std::string message, const std::string& name) const {
  const std::vector<std::string> lines = folder_.last_lines(log_of(name), kLogLines);
  message += lines.empty() ? "; its log is empty" : "; the last lines of its log:";
  for (const std::string& line : lines) message += "\n  " + line;
  return message;
}

// The processes that it has started end, and its files go.
Error Start::take_back(Error error) const {
  if (!recorded_) {
    if (state_.made_folder) folder_.remove_itself();
    return error;
  }
  if (const auto stopped = stop(folder_, state_, surroundings_.patience); !stopped)
    error.message += fmt::format("\nand taking it down again failed: {}", stopped.error().message);
  return error;
}

}  // namespace vmem::tools::local_cluster
