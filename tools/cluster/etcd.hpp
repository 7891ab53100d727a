// The etcd server of a local cluster: one, on loopback, with its data in the cluster's folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "tools/cluster/folder.hpp"
#include "tools/cluster/launch.hpp"

namespace vmem::tools::local_cluster {

struct EtcdPorts {
  std::uint16_t client = 0, peer = 0;
};

// Ports of 127.0.0.1 that are free now. Another process may take one before etcd does.
// Errors: DRIVER.
Result<EtcdPorts> free_ports();

// Whether a process listens at this port of 127.0.0.1.
bool listens(std::uint16_t port);

// The path of the first `name` on the PATH that can be run; "": none.
std::string find_on_path(const std::string& name);
// Errors: UNSUPPORTED, naming the package to install.
Result<std::string> find_etcd();

LaunchCommand etcd_command(const std::string& program, const Folder& folder, EtcdPorts ports);
// Whether the log's lines say that another process has one of its ports.
bool says_port_in_use(const std::vector<std::string>& log_lines);

// This process's environment. Without ETCD_*, which etcd reads as options.
std::vector<std::string> environment();
std::vector<std::string> environment_of_etcd();

}  // namespace vmem::tools::local_cluster
