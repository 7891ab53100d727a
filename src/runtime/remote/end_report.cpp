#include "runtime/remote/end_report.hpp"

#include <fmt/format.h>

#include "rdma/lending/protocol.hpp"
#include "runtime/remote/visit.hpp"

namespace vmem::runtime {
namespace {

constexpr std::uint64_t kReportUs = 2'000'000;

}  // namespace

Status report_end(const BorrowingNode& ended) {
  const NodeConfig own{.self = make_identity(0),
                       .listen = "",
                       .secret = ended.secret,
                       .certificates = ended.certificates,
                       .fabric = ended.fabric};
  const rdma::wire::End end{static_cast<std::uint64_t>(ended.node.id),
                            static_cast<std::uint64_t>(ended.node.incarnation)};
  const rdma::wire::RequestId request{static_cast<std::uint64_t>(own.self.id),
                                      Epoch{static_cast<std::uint64_t>(own.self.incarnation)}, 1};
  const std::uint64_t deadline_us = SteadyClock().now_us() + kReportUs;
  const auto hear = [&](rdma::Transport& transport, const rdma::Event& event, std::size_t) -> Result<bool> {
    if (const auto* const connected = std::get_if<rdma::Connected>(&event.what)) {
      VMEM_ASSIGN(const auto message,
                  rdma::wire::write({.version = connected->version, .kind = rdma::wire::Kind::end, .request = request},
                                    rdma::wire::body_of(end)));
      rdma::Send send{.peer = event.peer, .header = message, .deadline_us = deadline_us};
      VMEM_TRY(transport.send({&send, 1}));
    }
    // The lender answered, or is gone and so lends nothing.
    return std::holds_alternative<rdma::Message>(event.what) || std::holds_alternative<rdma::Gone>(event.what);
  };
  VMEM_ASSIGN(const std::size_t left, visit(own, ended.lenders, kReportUs, hear));
  if (left == 0) return {};
  return fail(VMEM_ERROR_TIMEOUT, fmt::format("{} of {} nodes did not answer", left, ended.lenders.size()));
}

}  // namespace vmem::runtime
