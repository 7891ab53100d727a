// The flags by which a command finds a cluster's registry: --cluster and --certificates, else the
// environment, as for programs.
#pragma once

#include <string>
#include <string_view>

#include "runtime/cluster/member.hpp"

namespace CLI {
class App;
}

namespace vmem::tools {

struct RegistryFlags {
  std::string cluster, certificates;  // as given

  void add_to(CLI::App& app);
  // Errors: INVALID_OPTION: no cluster is named.
  Result<runtime::RegistryAccess> access() const;
};

// The value of an option of the runtime: the flag's, else the environment's. "": none, or off.
std::string option_value(const std::string& flag, std::string_view name);

}  // namespace vmem::tools
