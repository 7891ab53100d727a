// Where the registry is, as users write it:
//   etcd://[USER[:PASSWORD]@]HOST:PORT[,HOST:PORT...]/NAME     etcds:// for TLS
// NAME is the cluster's: letters, digits, '.', '_' and '-'. Other characters of USER and PASSWORD
// are percent-encoded. IPv6 addresses stand in brackets.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"

namespace vmem::cluster {

struct EtcdAddress {
  bool tls = false;
  std::string user, password;          // user "": none
  std::vector<std::string> endpoints;  // "10.0.0.1:2379"; at least one
  std::string cluster;
  bool operator==(const EtcdAddress&) const = default;
};

inline constexpr std::size_t kMostEndpoints = 16;

// Errors: INVALID_OPTION; the message does not contain the password.
Result<EtcdAddress> parse_etcd_address(std::string_view text);

}  // namespace vmem::cluster
