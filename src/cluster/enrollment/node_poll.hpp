// Reads nodes/ and drain/ once a period, and at once when a peer has seen a later revision. A read
// that fails is repeated a period later and says nothing about the nodes.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "base/log_limit.hpp"
#include "base/outage_log.hpp"
#include "cluster/enrollment/enrollment_config.hpp"
#include "cluster/enrollment/node_record.hpp"
#include "cluster/enrollment/registry_calls.hpp"

namespace vmem::cluster {

struct NodesReading {
  Revision revision{};
  std::uint64_t sent_us = 0;
  std::vector<Record> nodes;
  std::map<NodeId, DrainOrder> draining;
  std::map<NodeId, HbmLimit> hbm_limits;
};

class NodePoll {
 public:
  NodePoll(RegistryCalls& calls, const EnrollmentConfig& config)
      : calls_(calls), config_(config), failures_(calls.clock()) {}

  void start();
  void stop();
  void poke(Revision revision);
  // The reading that ended since the last call. Revisions do not go back.
  std::optional<NodesReading> take();

  bool step(std::uint64_t now_us);
  std::uint64_t due_us() const;

 private:
  bool take_replies();
  bool keep(RegistryCall& call, std::optional<Reply>& answer);
  void read_in();
  void read_order(const Record& record, NodesReading& into);

  RegistryCalls& calls_;
  const EnrollmentConfig& config_;
  bool on_ = false;
  RegistryCall nodes_, drain_;
  std::optional<Reply> nodes_answer_, drain_answer_;
  std::uint64_t sent_us_ = 0;
  Revision seen_{};
  Revision poked_{};  // 0: not, since the last read was sent
  std::optional<NodesReading> reading_;
  OutageLog failures_;
  LogLimit unread_;
};

}  // namespace vmem::cluster
