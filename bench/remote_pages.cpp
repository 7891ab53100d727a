#include "bench/remote_pages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <vector>

namespace vmem::bench {
namespace {

constexpr std::array<std::string_view, 9> kOptions{"remote",      "borrow",         "replicas",
                                                   "remote_wait", "remote_encrypt", "remote_channels",
                                                   "secret",      "certificates",   "fabric"};

}  // namespace

Result<Options> remote_options(const Settings& settings) {
  std::vector<std::pair<std::string, std::string>> given;
  for (const auto& option : settings.runtime_options) {
    if (std::ranges::find(kOptions, option.first) != kOptions.end()) given.push_back(option);
  }
  return resolve_options(given);
}

Result<bool> names_a_node(const Settings& settings) {
  VMEM_ASSIGN(const Options options, options_named(settings, {"remote"}));
  return !options.remote.empty();
}

Result<std::uint64_t> remote_bytes(const Settings& settings) {
  VMEM_ASSIGN(const Options options, remote_options(settings));
  if (options.remote.empty()) return 0;
  VMEM_ASSIGN(const auto remote, runtime::Remote::start(options, nullptr));
  const std::vector<std::uint64_t> places = remote->tier().obtainable_places();
  const std::uint64_t bytes = std::accumulate(places.begin(), places.end(), std::uint64_t{0});
  if (bytes != 0) return bytes;
  return fail(
      VMEM_ERROR_INVALID_OPTION,
      fmt::format("the nodes of --remote ({}) have no room now: end programs that borrow from them, or let them "
                  "lend more",
                  remote->tier().describe()));
}

Result<std::unique_ptr<RemotePages>> RemotePages::create(const Options& options, std::uint64_t page_bytes,
                                                         std::uint64_t pages, const gpu::DriverRef& driver) {
  std::unique_ptr<RemotePages> made(new RemotePages);
  VMEM_ASSIGN(made->remote_, runtime::Remote::start(options, [self = made.get()] { self->note_ready(); }, driver));
  VMEM_TRY(made->take_slots(made->remote_->tier(), page_bytes, pages, "what the nodes of --remote lend"));
  return made;
}

}  // namespace vmem::bench
