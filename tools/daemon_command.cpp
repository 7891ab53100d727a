// vmem daemon: lends this machine's memory, HBM and disks to programs on other nodes, until
// stopped.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <optional>

#include "base/counted.hpp"
#include "base/log.hpp"
#include "base/printable.hpp"
#include "base/sizes.hpp"
#include "bench/exit_code.hpp"
#include "runtime/options/options.hpp"
#include "runtime/remote/daemon.hpp"
#include "tools/commands.hpp"

namespace vmem::tools {
namespace {

// Options that programs have too, with the same meaning and environment variables.
constexpr const char* kShared[] = {"secret", "certificates", "fabric", "cluster", "node_lease",
                                   "base",   "space",        "driver", "log"};

struct Arguments {
  runtime::DaemonOptions daemon;
  std::optional<std::uint64_t> hbm_mapped;    // with daemon.hbm, of which it is a part
  std::map<std::string, std::string> shared;  // name → value, as given by flags
};

// A flag with its own parser, whose error it reports.
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

// With HBM only if some is lent.
std::string media_words(const rdma::wire::MediumBytes& bytes, bool hbm) {
  const auto one = [](std::uint64_t each, const char* what) {
    return fmt::format("{} of {}", format_bytes(each), what);
  };
  const std::string disk = one(bytes.disk, "disk");
  if (!hbm) return fmt::format("{} and {}", one(bytes.memory, "memory"), disk);
  return fmt::format("{}, {} and {}", one(bytes.memory, "memory"), disk, one(bytes.hbm, "HBM"));
}

void say_statistics(const runtime::Daemon& daemon) {
  const rdma::ServiceStatistics s = daemon.statistics();
  const bool hbm = !daemon.hbm_path().empty();
  fmt::print(
      "vmem daemon: {} {}; {} pages, {} in memory, {} on disk{}; {} received, {} sent back; {} damaged pages found, {} "
      "messages rejected\n",
      counted(s.clients, "node borrows", "nodes borrow"), media_words(s.lent, hbm), s.pages,
      format_bytes(s.held.memory), format_bytes(s.held.disk),
      hbm ? fmt::format(", {} in HBM", format_bytes(s.held.hbm)) : "", format_bytes(s.stored_bytes),
      format_bytes(s.fetched_bytes), s.damaged, s.rejected);
  if (hbm)
    fmt::print("vmem daemon: of HBM, {} pages were sent back directly and {} through staging\n", s.hbm_direct,
               s.hbm_staged);
  if (daemon.mapped_hbm().bytes != 0) {
    const peer::Lender::Usage mapped = daemon.mapped_hbm_usage();
    fmt::print("vmem daemon: of HBM, {} of this host {} {}, {} of which are overdue\n",
               counted(mapped.borrowers, "program", "programs"), mapped.borrowers == 1 ? "maps" : "map",
               format_bytes(mapped.held_bytes), format_bytes(mapped.overdue_bytes));
  }
  std::fflush(stdout);
}

const OptionDefinition& runtime_option(std::string_view name) {
  return *std::ranges::find(option_table(), name, &OptionDefinition::name);
}

// As in programs: a flag, else the environment, else the default.
Result<Options> read_shared(const Arguments& arguments) {
  Options options;
  bool space_given = false;
  for (const std::string name : kShared) {
    const OptionDefinition& option = runtime_option(name);
    const auto flag = arguments.shared.find(name);
    const bool given = flag != arguments.shared.end();
    const auto value = given ? std::optional(flag->second) : option_in_environment(option);
    if (!value) continue;
    space_given = space_given || name == "base" || name == "space";
    if (const Status parsed = option.parse(options, *value); !parsed)
      return fail(parsed.error().status, fmt::format("{} (from {})", parsed.error().message,
                                                     given ? option_flag(option) : option_environment(option)));
  }
  if (!options.cluster.empty() && !space_given) use_cluster_space(options);
  if (!options.secret.empty() && !options.certificates.empty())
    return fail(VMEM_ERROR_INVALID_OPTION,
                "secrets and certificates cannot be used together: give --secret (VMEM_SECRET) or --certificates "
                "(VMEM_CERTIFICATES), and off for the other one");
  return options;
}

Status parse_id(const std::string& text, std::uint32_t& to) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), to);
  if (code == std::errc{} && end == text.data() + text.size()) return {};
  return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("'{}' is no node's number; accepted: whole numbers up to {}", text,
                                                     std::numeric_limits<std::uint32_t>::max()));
}

Status parse_channels(const std::string& text, std::optional<std::uint32_t>& to) {
  std::uint32_t channels = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), channels);
  const bool whole = code == std::errc{} && end == text.data() + text.size();
  if (!whole || channels < 1 || channels > kMostRemoteChannels)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("'{}' is no number of connections; accepted: 1 to {}", text, kMostRemoteChannels));
  to = channels;
  return {};
}

Status parse_label(const std::string& text, std::map<std::string, std::string>& to) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("'{}' is no label; accepted: NAME=VALUE", text));
  to[text.substr(0, equals)] = text.substr(equals + 1);
  return {};
}

// Warns about a secret, which is meant for other machines, with a loopback address, which they
// cannot reach.
const char* who_reaches(const runtime::Daemon& daemon, const Options& shared) {
  const bool over_tls = !shared.secret.empty() || !shared.certificates.empty();
  return over_tls && daemon.on_loopback() ? "; only this machine reaches that address, --listen HOST:PORT names another"
                                          : "";
}

std::string hbm_words(const runtime::Daemon& daemon) {
  if (daemon.hbm_path().empty()) return "";
  return fmt::format(", {} of HBM ({})", format_bytes(daemon.hbm_bytes()), daemon.hbm_path());
}

// Returns when a signal ends the daemon, or a drain does.
void serve(const runtime::Daemon& daemon, const sigset_t& signals) {
  constexpr timespec kLook{.tv_sec = 0, .tv_nsec = 200'000'000};
  while (!daemon.is_over()) {
    const int signal = sigtimedwait(&signals, nullptr, &kLook);
    if (signal < 0) continue;
    say_statistics(daemon);
    if (signal != SIGUSR1) return;
  }
  fmt::print("vmem daemon: it is drained, and ends as it was asked to\n");
  std::fflush(stdout);
}

Status add_mapped(std::uint64_t bytes, std::optional<runtime::HbmLoan>& loan) {
  if (loan) return runtime::add_mapped_part(*loan, bytes);
  return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--hbm-mapped {} is a part of the HBM that --hbm GPU:SIZE lends: "
                                                     "give that, too",
                                                     exact_bytes(bytes)));
}

int run(Arguments arguments) {
  const auto shared = read_shared(arguments);
  if (!shared) return refuse(shared.error());
  if (arguments.hbm_mapped) {
    if (const Status added = add_mapped(*arguments.hbm_mapped, arguments.daemon.hbm); !added)
      return refuse(added.error());
  }
  if (const auto level = log::parse_level(shared->log_level)) log::set_level(*level);
  arguments.daemon.secret = shared->secret;
  arguments.daemon.certificates = shared->certificates;
  arguments.daemon.fabric = shared->fabric;
  arguments.daemon.cluster = shared->cluster;
  arguments.daemon.node_lease_s = shared->node_lease_s;
  arguments.daemon.base = shared->base;
  arguments.daemon.space_bytes = shared->space_bytes;
  arguments.daemon.driver = shared->driver;
  // Block signals before starting threads, which inherit the mask; this thread waits for them.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int each : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&signals, each);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const auto daemon = runtime::Daemon::start(arguments.daemon);
  if (!daemon) return refuse(daemon.error());
  fmt::print("vmem daemon: node {} listens on {} and lends {} of memory, {} of disk{}{}\n", (*daemon)->id(),
             (*daemon)->address(), format_bytes((*daemon)->memory_bytes()), format_bytes((*daemon)->disk_bytes()),
             hbm_words(**daemon), who_reaches(**daemon, *shared));
  if (const cluster::MappedHbm mapped = (*daemon)->mapped_hbm(); mapped.bytes != 0)
    fmt::print("vmem daemon: {} of the HBM are for programs of this host to map, at {}\n", format_bytes(mapped.bytes),
               mapped.socket);
  if (const auto id = static_cast<std::uint64_t>((*daemon)->member_id()); id != 0)
    fmt::print("vmem daemon: it is node {} of the cluster {}\n", id,
               shared->cluster.substr(shared->cluster.rfind('/') + 1));
  std::fflush(stdout);
  serve(**daemon, signals);
  return bench::kExitOk;
}

void add_shared(CLI::App& app, Arguments& arguments, const char* name, const char* type, const char* help) {
  const OptionDefinition& option = runtime_option(name);
  app.add_option_function<std::string>(
         option_flag(option), [&arguments, name](const std::string& text) { arguments.shared[name] = text; },
         fmt::format("{} ({})", help, option_environment(option)))
      ->type_name(type);
}

}  // namespace

Command add_daemon(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  runtime::DaemonOptions& daemon = arguments->daemon;
  app.add_option("--listen", daemon.listen,
                 "Where programs reach it; port 0: any that is free. For programs on other machines: an address of "
                 "this one that they reach, or 0.0.0.0")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  add_parsed(app, "--lend", "SIZE", "How much of this machine's memory others may use, from 2MiB",
             [&daemon](const std::string& text) -> Status {
               VMEM_ASSIGN(daemon.lend_bytes, parse_bytes(text));
               return {};
             });
  add_parsed(app, "--copies", "SIZE",
             "With --cluster: and how much memory copies of published regions may take, from 2MiB",
             [&daemon](const std::string& text) -> Status {
               VMEM_ASSIGN(daemon.copies_bytes, parse_bytes(text));
               return {};
             });
  add_parsed(app, "--nvme", "DIR:SIZE,...", "And how much in files of these directories",
             [&daemon](const std::string& text) -> Status {
               Options options;
               VMEM_TRY(runtime_option("nvme").parse(options, text));
               daemon.nvme = options.nvme;
               return {};
             });
  add_parsed(app, "--hbm", "GPU:SIZE",
             "And how much HBM of this machine's GPU with that number, such as 0:40GiB; only then it opens the driver",
             [&daemon](const std::string& text) -> Status {
               VMEM_ASSIGN(daemon.hbm, runtime::parse_hbm_loan(text));
               return {};
             });
  add_parsed(app, "--hbm-mapped", "SIZE",
             "Of that HBM, how much is for programs of this host that map it: members of the cluster do so by "
             "themselves, before their own host memory; others with --peers SOCKET (default: none)",
             [arguments = arguments.get()](const std::string& text) -> Status {
               VMEM_ASSIGN(arguments->hbm_mapped, parse_bytes(text));
               return {};
             });
  add_shared(app, *arguments, "secret", "FILE",
             "A file of `vmem secret new`: programs that know one of its secrets are let in. Without it, or "
             "certificates, only this user's programs on this machine are, over a Unix socket");
  add_shared(app, *arguments, "certificates", "DIR",
             "Instead of secrets a folder with ca.crt, tls.crt and tls.key: programs with a certificate of that "
             "authority are let in");
  add_shared(app, *arguments, "fabric", "ucx:DEVICES",
             "RDMA devices that carry pages instead of TLS, neither authenticated nor encrypted");
  add_parsed(app, "--id", "N",
             "Without --cluster: this node's number (default: the same for each daemon of this host and address)",
             [&daemon](const std::string& text) { return parse_id(text, daemon.id); });
  add_parsed(app, "--per-node", "SIZE",
             "The most that one node may borrow of memory, of HBM, and of disk, from 2MiB (default: all)",
             [&daemon](const std::string& text) -> Status {
               VMEM_ASSIGN(daemon.client_bytes, parse_bytes(text));
               return {};
             });
  add_parsed(app, "--grace", "DURATION", "How long the pages of a node that is gone are kept (default: 60s)",
             [&daemon](const std::string& text) -> Status {
               VMEM_ASSIGN(daemon.grace_us, parse_duration_us(text));
               return {};
             });
  add_parsed(app, "--channels", "N",
             "Connections that a node may use, from two on each with a thread (default: by the number of processors)",
             [&daemon](const std::string& text) { return parse_channels(text, daemon.channels); });
  add_shared(app, *arguments, "cluster", "etcd://HOST:PORT/NAME",
             "Makes it a member of this cluster: programs with the same option find it there");
  add_shared(app, *arguments, "node_lease", "DURATION",
             "With --cluster: the time without word of it after which it is taken for gone; 90s by default");
  add_shared(app, *arguments, "base", "ADDRESS", "With --cluster: the first address of its address space");
  add_shared(app, *arguments, "space", "SIZE", "With --cluster: the size of its address space");
  app.add_option(
         "--advertise", daemon.advertise,
         "With --cluster: where its other nodes reach this one, the preferred address first (default: --listen)")
      ->type_name("HOST:PORT,...")
      ->delimiter(',');
  add_parsed(app, "--label", "NAME=VALUE", "With --cluster: says more about this node, such as rack=a; repeatable",
             [&daemon](const std::string& text) { return parse_label(text, daemon.labels); });
  add_shared(app, *arguments, "driver", "auto|emulated|FILE", "With --hbm: the CUDA driver");
  add_shared(app, *arguments, "log", "LEVEL", "Messages of this level and above go to stderr; warn by default");
  app.footer(
      "It says one line when it is ready. SIGUSR1 makes it say what it holds; SIGTERM and SIGINT end it, and what it "
      "holds "
      "is gone. `vmem node drain` moves that away first.\nExit codes: 0 ended by a signal or a drain; 2 bad options; 3 "
      "the machine or the network failed.");
  return [arguments] { return run(*arguments); };
}

}  // namespace vmem::tools
