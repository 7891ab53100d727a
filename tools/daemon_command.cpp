// vmem daemon: lends this machine's memory and disks to programs on other nodes, until it is told to stop.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>

#include "base/log.hpp"
#include "base/options.hpp"
#include "base/printable.hpp"
#include "bench/exit_code.hpp"
#include "runtime/daemon.hpp"
#include "tools/commands.hpp"

namespace vmem::tools {
namespace {

struct Arguments {
  runtime::DaemonOptions daemon;
  std::string log = "warn";
};

// A value's own parser, with the error that it gives.
template <class Parse>
void add_parsed(CLI::App& app, const char* flag, const char* type, const char* help, const Parse& parse) {
  app.add_option_function<std::string>(
         flag,
         [flag, parse](const std::string& text) {
           if (const Status parsed = parse(text); !parsed) throw CLI::ValidationError(flag, parsed.error().message);
         },
         help)
      ->type_name(type);
}

int refuse(const Error& error) {
  fmt::print(stderr, "vmem daemon: {}\n", printable(error.message, 4000));
  return error.status == VMEM_ERROR_INVALID_OPTION ? bench::kExitBadOptions : bench::kExitFailed;
}

void say_statistics(const runtime::Daemon& daemon) {
  const rdma::ServiceStatistics s = daemon.statistics();
  fmt::print(
      "vmem daemon: {} nodes borrow {} of memory and {} of disk; {} pages, {} in memory, {} on disk; {} received, {} "
      "sent back; {} damaged pages found, {} messages rejected\n",
      s.clients, format_bytes(s.lent_bytes), format_bytes(s.disk_lent_bytes), s.pages, format_bytes(s.held_bytes),
      format_bytes(s.disk_held_bytes), format_bytes(s.stored_bytes), format_bytes(s.fetched_bytes), s.damaged,
      s.rejected);
  std::fflush(stdout);
}

// As the runtime's option of that name is read.
template <class T>
Status parse_as(std::string_view name, const std::string& text, T Options::* from, T& to) {
  Options options;
  const auto table = option_table();
  VMEM_TRY(std::ranges::find(table, name, &OptionDefinition::name)->parse(options, text));
  to = options.*from;
  return {};
}

int run(const Arguments& arguments) {
  if (const auto level = log::parse_level(arguments.log)) log::set_level(*level);
  // Before there are threads, which inherit it: signals are waited for, here.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int each : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&signals, each);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const auto daemon = runtime::Daemon::start(arguments.daemon);
  if (!daemon) return refuse(daemon.error());
  fmt::print("vmem daemon: node {} listens on {} and lends {} of memory, {} of disk\n", (*daemon)->id(),
             (*daemon)->address(), format_bytes((*daemon)->memory_bytes()), format_bytes((*daemon)->disk_bytes()));
  std::fflush(stdout);
  for (int signal = SIGUSR1; signal == SIGUSR1;) {
    sigwait(&signals, &signal);
    say_statistics(**daemon);
  }
  return bench::kExitOk;
}

}  // namespace

Command add_daemon(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  runtime::DaemonOptions& daemon = arguments->daemon;
  app.add_option("--listen", daemon.listen, "Where programs reach it; port 0: any that is free")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  add_parsed(app, "--lend", "SIZE", "How much of this machine's memory others may use",
             [&daemon](const std::string& text) -> Status {
               VMEM_ASSIGN(daemon.lend_bytes, parse_bytes(text));
               return {};
             });
  add_parsed(app, "--nvme", "DIR:SIZE,...", "And how much in files of these directories",
             [&daemon](const std::string& text) { return parse_as("nvme", text, &Options::nvme, daemon.nvme); });
  app.add_option("--secret", daemon.secret,
                 "A file of `vmem secret new`: programs that know one of its secrets are let in. Without it, or "
                 "certificates, only this user's programs on this machine are, over a Unix socket")
      ->type_name("FILE");
  app.add_option("--certificates", daemon.certificates,
                 "A folder with ca.crt, tls.crt and tls.key: programs with a certificate of that authority are let in")
      ->type_name("DIR")
      ->excludes("--secret");
  add_parsed(app, "--fabric", "ucx:DEVICES",
             "RDMA devices that carry pages instead of TLS, neither authenticated nor encrypted (default: off)",
             [&daemon](const std::string& text) { return parse_as("fabric", text, &Options::fabric, daemon.fabric); });
  app.add_option("--id", daemon.id, "This node's number (default: one by chance)")->type_name("N");
  add_parsed(app, "--per-node", "SIZE", "The most that one node may borrow of memory, and of disk (default: all)",
             [&daemon](const std::string& text) -> Status {
               VMEM_ASSIGN(daemon.client_bytes, parse_bytes(text));
               return {};
             });
  add_parsed(app, "--grace", "DURATION", "How long the pages of a node that is gone are kept (default: 60s)",
             [&daemon](const std::string& text) -> Status {
               VMEM_ASSIGN(daemon.grace_us, parse_duration_us(text));
               return {};
             });
  app.add_option(
         "--channels", daemon.channels,
         "Connections that a node may use, from two on each with a thread (default: by the number of processors)")
      ->type_name("N")
      ->check(CLI::Range(1u, kMostRemoteChannels));
  add_parsed(app, "--log", "LEVEL", "Messages of this level and above go to stderr (default: warn)",
             [arguments](const std::string& text) -> Status {
               VMEM_TRY(log::parse_level(text));
               arguments->log = text;
               return {};
             });
  app.footer(
      "It says one line when it is ready. SIGUSR1 makes it say what it holds; SIGTERM and SIGINT end it, and what it "
      "holds "
      "is gone.\nExit codes: 0 ended by a signal; 2 bad options; 3 the machine or the network failed.");
  return [arguments] { return run(*arguments); };
}

}  // namespace vmem::tools
