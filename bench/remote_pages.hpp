// Pages through a remote tier configured as the runtime configures it, to the nodes of --remote.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.hpp"
#include "bench/settings.hpp"
#include "bench/tier_pages.hpp"
#include "runtime/options/options.hpp"
#include "runtime/remote/remote.hpp"

namespace vmem::bench {

// The runtime options about other nodes; an empty node list if none is named. Errors:
// INVALID_OPTION.
Result<Options> remote_options(const Settings& settings);
// True if --remote, or the environment, names a node.
Result<bool> names_a_node(const Settings& settings);
// Asks the nodes how much they lend and returns the sum; 0 without nodes. Errors: INVALID_OPTION,
// naming the node that cannot be reached.
Result<std::uint64_t> remote_bytes(const Settings& settings);

class RemotePages final : public TierPages {
 public:
  // `driver`: as for Remote::start.
  static Result<std::unique_ptr<RemotePages>> create(const Options& options, std::uint64_t page_bytes,
                                                     std::uint64_t pages, const gpu::DriverRef& driver = nullptr);
  // "127.0.0.1:7000 by tcp/lo, 8 GiB"
  std::string describe() const { return remote_->tier().describe(); }

 private:
  RemotePages() = default;
  std::unique_ptr<runtime::Remote> remote_;
};

}  // namespace vmem::bench
