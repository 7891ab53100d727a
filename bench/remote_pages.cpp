#include "bench/remote_pages.hpp"

#include <algorithm>
#include <array>
#include <string_view>

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
  return remote->tier().usage().budget_bytes;
}

Result<std::unique_ptr<RemotePages>> RemotePages::create(const Options& options, std::uint64_t page_bytes,
                                                         std::uint64_t pages, const gpu::DriverRef& driver) {
  std::unique_ptr<RemotePages> made(new RemotePages);
  VMEM_ASSIGN(made->remote_, runtime::Remote::start(options, [self = made.get()] { self->note_ready(); }, driver));
  VMEM_TRY(made->take_slots(made->remote_->tier(), page_bytes, pages, "what the nodes of --remote lend"));
  return made;
}

}  // namespace vmem::bench
