// Sends pages of published regions to the nodes that ask for them.
//
// Thread: the node's, but for create, the destructor and statistics().
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "base/log_limit.hpp"
#include "rdma/node/node.hpp"
#include "sharing/page_holder.hpp"

namespace vmem::sharing {

class PageServer final : public rdma::Service {
 public:
  struct Statistics {
    std::uint64_t pages = 0, bytes = 0;  // sent
    std::uint64_t same = 0;              // not sent: who asked had the bytes
    std::uint64_t refused = 0;           // malformed, or of a tenant that may not read the region
  };
  // Pages for one node in preparation or being sent; a further request is to be made again.
  static constexpr std::uint32_t kMostOfOne = 64;

  // Adds itself to the node. Both outlive this.
  PageServer(rdma::Node& node, PageHolder& holder);
  ~PageServer() override;
  Statistics statistics() const;

  std::span<const rdma::wire::Kind> kinds() const override;
  void request(const rdma::Peer& from, const rdma::wire::Parsed& message) override;
  void sent(rdma::SendId id) override;
  void send_failed(rdma::SendId id) override { leaving_.erase(id); }
  bool step() override;
  void quiesce() override;
  bool quiesced() const override { return of_peer_.empty(); }

 private:
  using Lent = std::expected<LentPage, rdma::wire::Answer>;
  // A page that was asked for. Gives it back when it is destroyed.
  struct Leaving {
    Leaving(PageServer& of, rdma::PeerId to, const rdma::wire::Header& asked);
    ~Leaving();
    Leaving(const Leaving&) = delete;
    Leaving& operator=(const Leaving&) = delete;
    PageServer& server;
    const rdma::PeerId peer;
    const rdma::wire::RequestId request;
    const rdma::wire::Order order;
    std::uint64_t known = 0;  // see SharedRequest
    Lent page;
    std::unique_ptr<rdma::Slab> slab;
    std::unique_ptr<Leaving> before;  // prepared before this one, and not seen yet
  };
  using LeavingPtr = std::unique_ptr<Leaving>;
  void prepared(LeavingPtr leaving) noexcept;
  void lent(LeavingPtr leaving);
  void answer(rdma::PeerId to, const rdma::wire::RequestId& request, const SharedReply& reply);
  void answer(rdma::PeerId to, const rdma::wire::RequestId& request, rdma::wire::Answer answer) {
    this->answer(to, request, SharedReply{.answer = answer});
  }
  std::optional<rdma::SendId> send(LeavingPtr leaving);
  Status post(Leaving& leaving, rdma::SendId& id);

  rdma::Node& node_;
  PageHolder& holder_;
  LogLimit unsent_;
  std::map<rdma::PeerId, std::uint32_t> of_peer_;  // pages in preparation or being sent
  std::map<rdma::SendId, LeavingPtr> leaving_;
  bool quiescing_ = false;

  std::mutex mutex_;
  LeavingPtr prepared_;  // the latest; protected by mutex_

  // Any thread reads them.
  std::atomic<std::uint64_t> pages_ = 0, bytes_ = 0, same_ = 0, refused_ = 0;
};

}  // namespace vmem::sharing
