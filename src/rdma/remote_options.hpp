// Options of this module. Other nodes that keep pages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/option.hpp"

namespace vmem {

inline constexpr std::uint32_t kMostRemoteChannels = 8;

struct RemoteOptions {
  std::vector<std::string> remote;  // --remote: "off" (empty) or "10.0.0.1:7000,10.0.0.2:7000"
  std::string cluster;              // --cluster: "off" (empty) or where its registry is
  std::string advertise;            // --advertise: "auto" (empty) or this node's address
  std::uint32_t node_lease_s = 90;  // --node-lease: of its membership in a cluster
  // --borrow: of memory, and of disk, per node; "auto": all that it lends
  std::optional<std::uint64_t> borrow_bytes;
  std::uint32_t replicas = 1;  // --replicas: number of nodes that store a page
  // --remote-wait: for the node with the only copy of a page
  std::uint64_t remote_wait_us = 20'000'000;
  // --remote-encrypt: on: other nodes cannot read the pages they keep
  bool remote_encrypt = false;
  // --remote-channels: connections to each node; "auto": from the number of processors
  std::optional<std::uint32_t> remote_channels;
  std::string secret;        // --secret: "off" (empty) or a file
  std::string certificates;  // --certificates: "off" (empty) or a folder
  std::string fabric;        // --fabric: "off" (empty) or UCX device names, "mlx5_0:1,mlx5_1:1"

  bool use_nodes() const { return !remote.empty() || !cluster.empty(); }
};

std::vector<Option<RemoteOptions>> remote_options();

}  // namespace vmem
