#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/printable.hpp"
#include "base/sizes.hpp"
#include "runtime/options/options.hpp"

namespace vmem {
namespace {

constexpr std::string_view kPrefix = "VMEM_";
constexpr std::uint64_t kMaxAddress = 1ull << 47;

std::string nearest_option(std::string_view name) {
  std::vector<std::string> known;
  for (const OptionDefinition& option : option_table()) known.push_back(option.name);
  return nearest_name(name, known);
}

// "_TCP", "_TCP_PROTO", "_TCP_PORT" or "_TCP_ADDR", or the same of UDP and SCTP, after
// "_PORT_<number>".
bool describes_port(std::string_view rest) {
  const std::size_t digits = rest.find_first_not_of("0123456789");
  if (digits == 0 || digits == std::string_view::npos) return false;
  rest.remove_prefix(digits);
  for (const std::string_view protocol : {"_TCP", "_UDP", "_SCTP"}) {
    if (!rest.starts_with(protocol)) continue;
    const std::string_view what = rest.substr(protocol.size());
    return what.empty() || what == "_PROTO" || what == "_PORT" || what == "_ADDR";
  }
  return false;
}

// Kubernetes sets these variables in every container of a namespace with a service named vmem or
// vmem-...; no user chose them.
bool from_kubernetes(std::string_view variable, std::string_view value) {
  if (variable.ends_with("_SERVICE_HOST") || variable.ends_with("_SERVICE_PORT")) return true;
  if (variable.find("_SERVICE_PORT_") != std::string_view::npos) return true;
  const bool address = value.starts_with("tcp://") || value.starts_with("udp://") || value.starts_with("sctp://");
  if (variable.ends_with("_PORT") && address) return true;
  constexpr std::string_view kPort = "_PORT_";
  for (std::size_t at = variable.find(kPort); at != std::string_view::npos; at = variable.find(kPort, at + 1)) {
    if (describes_port(variable.substr(at + kPort.size()))) return true;
  }
  return false;
}

const OptionDefinition* find_option(std::string_view name) {
  const auto table = option_table();
  const auto found = std::ranges::find(table, name, &OptionDefinition::name);
  return found == table.end() ? nullptr : &*found;
}

// Collects values and their sources; messages name the source.
class Resolution {
 public:
  Status overlay_environment();
  Status overlay_given(std::span<const std::pair<std::string, std::string>> given, GivenBy by);
  // Fills in defaults that depend on other options.
  void derive();
  Status check_contradictions() const;
  Options take() { return std::move(options_); }

 private:
  Status set(const OptionDefinition& option, std::string_view value, std::string source);
  bool is_set(std::string_view name) const { return !source_of(name).empty(); }
  std::string source_of(std::string_view name) const;
  // "hbm=1GiB (from VMEM_HBM)"
  std::string describe(std::string_view name) const;
  Status check_space() const;
  Status check_page() const;
  Status check_remote() const;

  Options options_;
  // (option name, source); the last entry counts
  std::vector<std::pair<std::string, std::string>> sources_;
};

Status Resolution::set(const OptionDefinition& option, std::string_view value, std::string source) {
  if (auto parsed = option.parse(options_, value); !parsed) {
    return fail(parsed.error().status, fmt::format("{} (from {})", parsed.error().message, source));
  }
  sources_.emplace_back(option.name, std::move(source));
  return {};
}

std::string Resolution::source_of(std::string_view name) const {
  for (auto entry = sources_.rbegin(); entry != sources_.rend(); ++entry) {
    if (entry->first == name) return entry->second;
  }
  return "";
}

std::string Resolution::describe(std::string_view name) const {
  return fmt::format("{}={} (from {})", name, printable(find_option(name)->print(options_)),
                     is_set(name) ? source_of(name) : "its default");
}

Status Resolution::overlay_environment() {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (!text.starts_with(kPrefix) || equals == std::string_view::npos) continue;
    const std::string_view variable = text.substr(0, equals);
    // The emulated driver, `vmem run` and the tests read these themselves.
    if (variable == "VMEM_EMU" || variable == "VMEM_GUARD" || variable == "VMEM_RUN" ||
        variable.starts_with("VMEM_TEST_"))
      continue;
    const auto table = option_table();
    const auto option = std::ranges::find(table, variable, option_environment);
    if (option == table.end() && from_kubernetes(variable, text.substr(equals + 1))) continue;
    if (option == table.end()) {
      return fail(VMEM_ERROR_INVALID_OPTION,
                  fmt::format("the environment variable {} names no option; the nearest is {}", printable(variable),
                              option_environment(*find_option(nearest_option(variable.substr(kPrefix.size()))))));
    }
    VMEM_TRY(set(*option, text.substr(equals + 1), std::string(variable)));
  }
  return {};
}

Status Resolution::overlay_given(std::span<const std::pair<std::string, std::string>> given, GivenBy by) {
  for (auto entry = given.begin(); entry != given.end(); ++entry) {
    const auto& [name, value] = *entry;
    const OptionDefinition* option = find_option(name);
    if (option == nullptr) {
      return fail(VMEM_ERROR_INVALID_OPTION,
                  fmt::format("there is no option '{}'; the nearest is {}", printable(name), nearest_option(name)));
    }
    if (const auto twice =
            std::find_if(given.begin(), entry, [&](const auto& earlier) { return earlier.first == name; });
        twice != entry) {
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("option {} is given twice: '{}' and '{}'", name,
                                                         printable(twice->second), printable(value)));
    }
    VMEM_TRY(set(*option, value, by == GivenBy::flags ? option_flag(*option) : "the caller"));
  }
  return {};
}

void Resolution::derive() {
  if (options_.cluster.empty() || is_set("base") || is_set("space")) return;
  use_cluster_space(options_);
}

Status Resolution::check_space() const {
  if (options_.space_bytes <= kMaxAddress - options_.base) return {};
  return fail(
      VMEM_ERROR_INVALID_OPTION,
      fmt::format("{} and {} end beyond the 47-bit limit of user addresses; this space fits from base {:#x} down",
                  describe("base"), describe("space"), kMaxAddress - options_.space_bytes));
}

Status Resolution::check_page() const {
  if (!options_.page_bytes) return {};
  const std::pair<std::string_view, std::optional<std::uint64_t>> pools[]{
      {"hbm", options_.hbm_bytes}, {"host", options_.host_bytes}, {"space", options_.space_bytes}};
  for (const auto& [name, bytes] : pools) {
    if (bytes && *bytes < *options_.page_bytes) {
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("{} is smaller than one page: {}; lower page or raise {}",
                                                         describe(name), describe("page"), name));
    }
  }
  if (options_.hbm_bytes && *options_.page_bytes > *options_.hbm_bytes / kPagesInHbm) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{} is more than {}, a part in {} of {}; lower page or raise hbm", describe("page"),
                            exact_bytes(*options_.hbm_bytes / kPagesInHbm), kPagesInHbm, describe("hbm")));
  }
  return {};
}

Status Resolution::check_remote() const {
  for (const std::string_view name :
       {"borrow", "replicas", "remote_wait", "remote_encrypt", "remote_channels", "secret", "certificates"}) {
    if (options_.use_nodes() || !is_set(name)) continue;
    return fail(
        VMEM_ERROR_INVALID_OPTION,
        fmt::format("{} would have no effect: no node is named; give remote or cluster, or drop it", describe(name)));
  }
  if (!options_.remote.empty() && !options_.cluster.empty()) {
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("{} names nodes, and {} finds them: drop one of them",
                                                       describe("remote"), describe("cluster")));
  }
  for (const std::string_view name : {"advertise", "node_lease", "published_cache", "published_cache_disk"}) {
    if (!options_.cluster.empty() || !is_set(name)) continue;
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{} would have no effect: it is for members of a cluster; give cluster, or drop it",
                            describe(name)));
  }
  if (options_.cluster.empty() && options_.replicas > 1 && options_.remote.size() < options_.replicas) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{} needs as many nodes: {}; name another one, or lower replicas", describe("replicas"),
                            describe("remote")));
  }
  if (options_.drained && options_.use_nodes()) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{} keeps everything in the GPU's reach, which other nodes are not: drop {}",
                            describe("drained"), describe(options_.remote.empty() ? "cluster" : "remote")));
  }
  return {};
}

Status Resolution::check_contradictions() const {
  VMEM_TRY(check_space());
  VMEM_TRY(check_page());
  if (options_.hbm_bytes && is_set("headroom")) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{} would have no effect, because of {}; drop one of them, or set hbm=auto",
                            describe("headroom"), describe("hbm")));
  }
  if (options_.strict && options_.drained) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{} lets a launch reach only what it names, {} lets it reach everything; choose one",
                            describe("strict"), describe("drained")));
  }
  VMEM_TRY(check_remote());
  for (const std::string_view name : {"nvme_poll", "published_cache_disk"}) {
    const bool wanted = name == "nvme_poll" ? options_.nvme_poll : options_.published_cache_disk.value_or(0) != 0;
    if (!wanted || !options_.nvme.empty()) continue;
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{} would have no effect: no directory is named; give nvme, or drop it", describe(name)));
  }
  if (options_.drained && !options_.nvme.empty()) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{} keeps everything in the GPU's reach, which files are not: drop {}", describe("drained"),
                            describe("nvme")));
  }
  return {};
}

}  // namespace

Result<Options> resolve_options(std::span<const std::pair<std::string, std::string>> given, GivenBy by) {
  Resolution resolution;
  VMEM_TRY(resolution.overlay_environment());
  VMEM_TRY(resolution.overlay_given(given, by));
  resolution.derive();
  VMEM_TRY(resolution.check_contradictions());
  return resolution.take();
}

}  // namespace vmem
