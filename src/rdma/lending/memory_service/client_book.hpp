// The connected borrowers. A node keeps one connection: the latest of its latest incarnation. A
// node only claims its id. So while a tenant (a proved identity) has a connection or a lease under
// an id, other tenants cannot use that id.
//
// Thread: the one that steps the service.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/log_limit.hpp"
#include "rdma/lending/dead_nodes.hpp"
#include "rdma/lending/memory_service/lease_book.hpp"
#include "rdma/lending/memory_service/service_config.hpp"
#include "rdma/lending/wire.hpp"

namespace vmem::rdma {

class ClientBook {
 public:
  struct Client {
    NodeIdentity node;
    std::string tenant;  // the proved identity
    std::uint64_t heard_us = 0;
    ProcessRef process;
    std::optional<std::uint64_t> asked_us;  // first ask that was answered `again`
    bool closing = false;
  };
  // All outlive this.
  struct Parts {
    Transport& transport;
    LeaseBook& leases;
    ReplyBox& replies;
    DeadNodes& dead;
    ServiceStatistics& statistics;
  };
  ClientBook(const ServiceConfig& config, Parts parts) : config_(config), parts_(parts) {}

  void connected(PeerId peer, const Connected& connected);
  void gone(PeerId peer, const Gone& gone);

  // REQUIRES: the peer is not gone.
  Client& at(PeerId peer) { return clients_.at(peer); }
  // True if the request names the node of its connection: notes that the node was heard. False:
  // counts the request as rejected.
  bool is_from(PeerId peer, const wire::Header& header);
  // Whether another identity uses the node's id.
  bool is_anothers(NodeId node, const std::string& tenant) const;
  bool empty() const { return clients_.empty(); }

  void close_all();
  void close_node(NodeIdentity node);
  void close_silent();

 private:
  void refuse(PeerId peer, const Connected& connected);
  void close(PeerId peer, Client& client);

  const ServiceConfig& config_;
  const Parts parts_;
  LogLimit came_, refused_, went_;  // rate-limited: peers decide how often
  std::map<PeerId, Client> clients_;
};

}  // namespace vmem::rdma
