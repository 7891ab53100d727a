#include "tools/registry_flags.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>

#include "runtime/options/options.hpp"

namespace vmem::tools {

std::string option_value(const std::string& flag, std::string_view name) {
  const OptionDefinition& option = *std::ranges::find(option_table(), name, &OptionDefinition::name);
  const std::string value = !flag.empty() ? flag : option_in_environment(option).value_or("");
  return value == "off" ? "" : value;
}

void RegistryFlags::add_to(CLI::App& app) {
  app.add_option("--cluster", cluster, "The cluster's registry (VMEM_CLUSTER)")->type_name("etcd://HOST:PORT/NAME");
  app.add_option("--certificates", certificates, "A folder with ca.crt, tls.crt and tls.key (VMEM_CERTIFICATES)")
      ->type_name("DIR");
}

Result<runtime::RegistryAccess> RegistryFlags::access() const {
  runtime::RegistryAccess found{option_value(cluster, "cluster"), option_value(certificates, "certificates")};
  if (!found.address.empty()) return found;
  const char* const variable = std::getenv("VMEM_CLUSTER");
  // As by a command that printed no address.
  if (cluster.empty() && variable != nullptr && *variable == '\0')
    return fail(
        VMEM_ERROR_INVALID_OPTION,
        "no cluster is named: VMEM_CLUSTER is empty; give --cluster etcd://HOST:PORT/NAME, or start a cluster of "
        "this machine with `vmem cluster up`, whose address `vmem cluster status --address` prints");
  return fail(VMEM_ERROR_INVALID_OPTION,
              "no cluster is named: give --cluster etcd://HOST:PORT/NAME, or set VMEM_CLUSTER to that");
}

}  // namespace vmem::tools
