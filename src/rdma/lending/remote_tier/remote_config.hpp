// Settings and statistics of a RemoteTier.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/node.hpp"
#include "base/status.hpp"
#include "rdma/lending/remote_tier/copy_placer.hpp"
#include "rdma/trust/page_aead.hpp"

namespace vmem::rdma {

struct RemoteConfig {
  enum class Credentials : std::uint8_t { user, secret, certificates };  // user: over Unix sockets

  std::vector<std::string> peers;  // addresses
  std::uint32_t replicas = 1;
  // Limit of memory, of disk, and of HBM borrowed from each node.
  std::uint64_t borrow_bytes = std::numeric_limits<std::uint64_t>::max();
  // Leases follow RemoteTier::need. False: each has as much as its node lends, up to borrow_bytes,
  // from the start.
  bool by_need = false;
  std::uint64_t tenant = 0;
  PageAead::Mode protection = PageAead::Mode::authenticate;
  std::uint64_t request_us = 2'000'000;
  std::uint64_t patience_us = 20'000'000;
  std::uint32_t workers = 1;
  std::uint32_t channels = 1;  // of the transport
  // Most bytes per second that are moved, or copied again, in the background.
  std::uint64_t repair_rate = std::uint64_t{256} << 20;
  // While a lender drains or wants HBM back, so many bytes may be on their way, or four pages if
  // that is more.
  std::uint64_t drain_bytes = std::uint64_t{128} << 20;
  // Whether pages that fit nowhere else go to draining lenders: not, if a tier below takes them.
  bool last_resort = true;
  // False: seals are made and checked on the node's thread.
  bool own_workers = true;
  Credentials credentials = Credentials::user;  // of the transport, for error messages
  // Called on the node's thread. heard: whether the node may be used at that address. missed: the
  // node missed a deadline.
  std::function<Status(const std::string& address, NodeIdentity node)> heard;
  std::function<void(NodeId node)> missed;
  std::function<void()> on_ready;  // like DiskTier's
};

// A lender that comes and goes. A name is not used again for another one.
struct NamedLender {
  std::uint64_t name = 0;
  std::vector<std::string> addresses;  // the preferred one first
  FailureDomain domain = {};
  // Who answers there; another node or a later incarnation is another lender. 0: whoever does.
  NodeIdentity node = {};
  // It gets no new pages, and those that it has move to others.
  bool drains = false;
  std::uint64_t drain_rate = 0;  // bytes per second; 0: repair_rate
};

struct RemoteStatistics {
  std::uint64_t stored_bytes = 0, fetched_bytes = 0;  // copies sent, pages fetched
  std::uint64_t reconnects = 0;
  std::uint64_t checksum_failures = 0;  // pages with a checksum mismatch at either end
  std::uint64_t copies_lost = 0;        // copies lost with their nodes
  std::uint64_t single_copies = 0;      // pages stored with fewer copies than `replicas`
  std::uint64_t retries = 0;            // requests that had to be repeated
  std::uint64_t repaired_bytes = 0;     // copies moved, or made again, in the background
};

}  // namespace vmem::rdma
