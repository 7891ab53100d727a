#include "runtime/remote/visit.hpp"

#include <map>

#include "base/log.hpp"

namespace vmem::runtime {
namespace {

constexpr std::uint64_t kTurnUs = 1'000;

struct NothingIsReceived final : rdma::Receiver {
  std::optional<rdma::Claim> claim(rdma::PeerId, rdma::ConstBytes, std::uint64_t) override { return std::nullopt; }
};

}  // namespace

Result<std::size_t> visit(const NodeConfig& visitor, const std::vector<std::string>& addresses, std::uint64_t most_us,
                          const HearVisited& hear) {
  SteadyClock clock;
  NothingIsReceived receiver;
  VMEM_ASSIGN(const auto transport, make_transport(visitor, clock, receiver));
  const std::uint64_t deadline_us = clock.now_us() + most_us;
  std::map<rdma::PeerId, std::size_t> visited;
  std::size_t left = addresses.size();
  for (std::size_t at = 0; at < addresses.size(); ++at) {
    const auto peer = transport->connect(addresses[at], deadline_us);
    if (peer) visited.emplace(*peer, at);
    if (!peer) VMEM_LOG_INFO("no connection to {}: {}", addresses[at], peer.error().message);
  }
  while (!visited.empty() && clock.now_us() < deadline_us) {
    const bool did = transport->progress();
    std::vector<rdma::Event> events;
    transport->poll(events);
    for (const rdma::Event& event : events) {
      const auto node = visited.find(event.peer);
      if (node == visited.end()) continue;
      VMEM_ASSIGN(const bool done, hear(*transport, event, node->second));
      if (!done) continue;
      visited.erase(node);
      --left;
    }
    if (!did && events.empty()) transport->idle(kTurnUs);
  }
  return left;
}

}  // namespace vmem::runtime
