#include "runtime/remote/end_report.hpp"

#include <fmt/format.h>

#include <set>

#include "rdma/lending/protocol.hpp"
#include "runtime/remote/nodes.hpp"

namespace vmem::runtime {
namespace {

constexpr std::uint64_t kReportUs = 2'000'000;
constexpr std::uint64_t kTurnUs = 1'000;

struct NothingIsReceived final : rdma::Receiver {
  std::optional<rdma::Claim> claim(rdma::PeerId, rdma::ConstBytes, std::uint64_t) override { return std::nullopt; }
};

}  // namespace

Status report_end(const BorrowingNode& ended) {
  SteadyClock clock;
  NothingIsReceived receiver;
  const NodeConfig own{.self = make_identity(0),
                       .listen = "",
                       .secret = ended.secret,
                       .certificates = ended.certificates,
                       .fabric = ended.fabric};
  VMEM_ASSIGN(const auto transport, make_transport(own, clock, receiver));
  const rdma::wire::End end{static_cast<std::uint64_t>(ended.node.id),
                            static_cast<std::uint64_t>(ended.node.incarnation)};
  const rdma::wire::RequestId request{static_cast<std::uint64_t>(own.self.id),
                                      Epoch{static_cast<std::uint64_t>(own.self.incarnation)}, 1};
  const std::uint64_t deadline_us = clock.now_us() + kReportUs;
  std::set<rdma::PeerId> asked;
  for (const std::string& lender : ended.lenders) {
    VMEM_ASSIGN(const rdma::PeerId peer, transport->connect(lender, deadline_us));
    asked.insert(peer);
  }
  while (!asked.empty() && clock.now_us() < deadline_us) {
    const bool did = transport->progress();
    std::vector<rdma::Event> events;
    transport->poll(events);
    for (const rdma::Event& event : events) {
      if (const auto* const connected = std::get_if<rdma::Connected>(&event.what)) {
        VMEM_ASSIGN(
            const auto message,
            rdma::wire::write({.version = connected->version, .kind = rdma::wire::Kind::end, .request = request},
                              rdma::wire::body_of(end)));
        rdma::Send send{.peer = event.peer, .header = message, .deadline_us = deadline_us};
        VMEM_TRY(transport->send({&send, 1}));
      }
      // The lender answered, or is gone and so lends nothing.
      if (std::holds_alternative<rdma::Message>(event.what) || std::holds_alternative<rdma::Gone>(event.what))
        asked.erase(event.peer);
    }
    if (!did && events.empty()) transport->idle(kTurnUs);
  }
  if (asked.empty()) return {};
  return fail(VMEM_ERROR_TIMEOUT, fmt::format("{} of {} nodes did not answer", asked.size(), ended.lenders.size()));
}

}  // namespace vmem::runtime
