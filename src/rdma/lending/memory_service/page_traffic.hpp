// Puts and fetches. A page that is put is verified against its seal before it is held; until then
// nobody can fetch it. The borrower verifies a page that it fetches; this service does so only if
// the borrower's last copy arrived damaged. Pages to and from disks and HBM pass through staging
// memory.
//
// A page in HBM goes directly from there, to a borrower that says it takes such pages
// (Peer::takes_gpu_memory), if it can be pinned (tiers::PinningTier) when its turn comes, and else
// through staging. It is pinned until the send ends, and no longer. Pages that come are staged,
// because a processor checks their seal; so is a page whose last copy arrived damaged. A borrower
// whose connections break during direct sends gets staged pages (Lease::direct_breaks).
//
// Thread: the one that steps the service.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>

#include "base/log_limit.hpp"
#include "rdma/lending/memory_service/lease_book.hpp"
#include "rdma/lending/memory_service/page_store.hpp"
#include "rdma/lending/memory_service/reply_box.hpp"
#include "rdma/node/page_outbox.hpp"
#include "tiers/async/workers.hpp"

namespace vmem::rdma {

class PageTraffic {
 public:
  // All outlive this.
  struct Parts {
    Transport& transport;
    const PeerBook& peers;
    PageOutbox& outbox;
    LeaseBook& leases;
    PageStore& store;
    ReplyBox& replies;
    tiers::Workers& workers;
    ServiceStatistics& statistics;
    tiers::PinningTier* direct;  // HBM that the transport sends from; null: none
  };
  PageTraffic(const ServiceConfig& config, Parts parts) : config_(config), parts_(parts) {}

  // A put is announced: where its page lands, if it may. `client`: the node of the connection.
  std::optional<Claim> claim(PeerId peer, NodeId client, const wire::Header& header, const wire::PageAt& at);
  void landed(std::uint64_t token);
  void receive_failed(std::uint64_t token);

  void fetch(PeerId peer, NodeId client, const wire::Header& header, ConstBytes body);
  void sent(SendId send);
  void send_failed(SendId send);

  // Whether pages wait in the outbox.
  bool sends_later() const { return in_outbox_ != 0; }

  void release(Lease& lease, const wire::PageAt& at, std::uint64_t sequence);

  // Submits to disks and HBM, and takes what they have completed; false: there was nothing.
  bool serve_tiers();

 private:
  enum class Way : std::uint8_t { in, out };  // a put, a fetch
  struct Passage {
    Way way = Way::in;
    LeaseRef lease;
    PeerId peer{};
    wire::RequestId request;
    wire::PageAt at;
    wire::Order order = wire::Order::foreground;
    Bytes memory;         // its bytes; of a page that may go directly: none until its turn comes
    Staging staging;      // of a page to or from a disk or HBM
    bool pinned = false;  // memory is the page's place in HBM
  };
  using PassageRef = std::shared_ptr<Passage>;
  static PassageRef begin(Way way, LeaseRef lease, PeerId peer, const wire::RequestId& request, const wire::PageAt& at);
  LentPage& page_of(const Passage& passage) { return passage.lease->pages.at(passage.at.offset); }
  // REQUIRES: a page in a tier.
  tiers::Tier& tier_of(const Passage& passage) { return *config_.tier(*wire::medium_of(passage.at.offset)); }
  bool stage(Passage& passage);

  bool may_go_directly(PeerId peer, const Lease& lease, const wire::PageAt& at) const;
  bool pin(Passage& passage);
  void stage_late(const PassageRef& passage);
  void direct_send_failed(const Passage& passage);

  void verify(const PassageRef& passage);
  void verified(const PassageRef& passage, wire::Answer found);
  void end_put(const PassageRef& passage, wire::Answer answer);
  void end_fetch(const PassageRef& passage, wire::Answer answer);
  void send_page(const PassageRef& passage);
  std::optional<SendId> send_now(const PassageRef& passage);
  void left(const PassageRef& passage);
  void answer(const Passage& passage, wire::Answer answer);

  bool find_slots();
  void to_tier(const PassageRef& passage, tiers::Direction direction, tiers::SlotId slot);
  void tier_ended(const PassageRef& passage, const tiers::Completion& completion);
  void tier_failed(const Passage& passage, const Error& error);

  const ServiceConfig& config_;
  const Parts parts_;
  LogLimit unsent_, tier_failures_;
  std::uint64_t last_token_ = 0, in_outbox_ = 0;
  std::map<std::uint64_t, PassageRef> landing_;  // by claim token
  std::map<SendId, PassageRef> leaving_;
  std::list<PassageRef> want_slot_;
  std::map<std::uint64_t, PassageRef> in_tier_;  // by transfer
};

}  // namespace vmem::rdma
