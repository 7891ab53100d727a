// Pages through a remote tier that is set up as the runtime does, to the nodes of --remote.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/options.hpp"
#include "base/status.hpp"
#include "bench/settings.hpp"
#include "bench/tier_pages.hpp"
#include "runtime/remote.hpp"

namespace vmem::bench {

// The runtime's options that concern other nodes; none named: an empty list of nodes. Errors: INVALID_OPTION.
Result<Options> remote_options(const Settings& settings);
// Whether --remote, or the environment, names a node.
Result<bool> names_a_node(const Settings& settings);
// What these nodes lend, asked of them; 0 without any. Errors: INVALID_OPTION, naming the one that cannot be reached.
Result<std::uint64_t> remote_bytes(const Settings& settings);

class RemotePages final : public TierPages {
 public:
  static Result<std::unique_ptr<RemotePages>> create(const Options& options, std::uint64_t page_bytes,
                                                     std::uint64_t pages);
  // "127.0.0.1:7000 by tcp/lo, 8 GiB"
  std::string describe() const { return remote_->tier().describe(); }

 private:
  RemotePages() = default;
  std::unique_ptr<runtime::Remote> remote_;
};

}  // namespace vmem::bench
