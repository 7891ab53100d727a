#include "sharing/page_server.hpp"

#include <array>
#include <utility>

#include "base/log.hpp"

namespace vmem::sharing {

using rdma::PeerId;
using rdma::SendId;
using rdma::wire::Answer;
using rdma::wire::Kind;

namespace {

constexpr std::uint64_t kSendUs = 10'000'000;  // for one page to leave

}  // namespace

PageServer::Leaving::Leaving(PageServer& of, PeerId to, const rdma::wire::Header& asked)
    : server(of), peer(to), request(asked.request), order(asked.order), page(std::unexpected(Answer::again)) {
  ++server.of_peer_[peer];
}

PageServer::Leaving::~Leaving() {
  slab.reset();
  if (page && page->give_back) page->give_back();
  const auto found = server.of_peer_.find(peer);
  if (--found->second == 0) server.of_peer_.erase(found);
}

PageServer::PageServer(rdma::Node& node, PageHolder& holder) : node_(node), holder_(holder) { node_.add(*this); }

PageServer::~PageServer() { node_.remove(*this); }

PageServer::Statistics PageServer::statistics() const { return {pages_, bytes_, same_, refused_}; }

std::span<const Kind> PageServer::kinds() const {
  static constexpr std::array kKinds = {Kind::fetch_shared};
  return kKinds;
}

void PageServer::request(const rdma::Peer& from, const rdma::wire::Parsed& message) {
  const auto asked = rdma::wire::read_body<SharedRequest>(message.body);
  if (!asked || asked->page.reserved != 0 || !holder_.may_read(asked->page.serial, from.tenant)) {
    ++refused_;
    // Not told apart from a page that is not here: a stranger learns nothing of other tenants.
    return answer(from.id, message.header.request, Answer::unknown);
  }
  const auto busy = of_peer_.find(from.id);
  if (quiescing_ || (busy != of_peer_.end() && busy->second >= kMostOfOne))
    return answer(from.id, message.header.request, Answer::again);
  auto leaving = std::make_unique<Leaving>(*this, from.id, message.header);
  leaving->known = asked->known;
  holder_.lend(asked->page, [this, leaving = std::move(leaving)](Lent result) mutable {
    leaving->page = std::move(result);
    prepared(std::move(leaving));
  });
}

// Any thread. Allocates nothing: a page always gets back to the node's thread. The node is woken
// under the lock, so the server may end once it has seen the last page.
void PageServer::prepared(LeavingPtr leaving) noexcept {
  const std::lock_guard lock(mutex_);
  leaving->before = std::move(prepared_);
  prepared_ = std::move(leaving);
  node_.wake();
}

bool PageServer::step() {
  LeavingPtr latest, eldest;
  {
    const std::lock_guard lock(mutex_);
    latest = std::move(prepared_);
  }
  while (latest) {
    LeavingPtr before = std::move(latest->before);
    latest->before = std::move(eldest);
    eldest = std::move(latest);
    latest = std::move(before);
  }
  const bool any = eldest != nullptr;
  while (eldest) {
    LeavingPtr after = std::move(eldest->before);
    lent(std::move(eldest));
    eldest = std::move(after);
  }
  return any;
}

void PageServer::lent(LeavingPtr leaving) {
  const PeerId to = leaving->peer;
  const rdma::wire::RequestId request = leaving->request;
  if (!leaving->page) return answer(to, request, leaving->page.error());
  if (quiescing_) return answer(to, request, Answer::again);
  if (leaving->known != 0 && leaving->known == known_part(leaving->page->tag)) {
    ++same_;
    return answer(to, request, {.answer = Answer::same, .tag = leaving->page->tag});
  }
  const rdma::wire::Order order = leaving->order;
  node_.outbox().add(to, order, [this, leaving = std::move(leaving)]() mutable { return send(std::move(leaving)); });
}

std::optional<SendId> PageServer::send(LeavingPtr leaving) {
  SendId id{};
  const Status posted = quiescing_ ? Status(fail(VMEM_ERROR_UNSUPPORTED, "this node stops")) : post(*leaving, id);
  if (posted) {
    leaving_.emplace(id, std::move(leaving));
    return id;
  }
  if (const auto times = unsent_.next(); times.logged && !quiescing_)
    VMEM_LOG_WARN("a published page could not be sent: {} ({} so far)", posted.error().message, times.count);
  answer(leaving->peer, leaving->request, Answer::again);
  return std::nullopt;
}

Status PageServer::post(Leaving& leaving, SendId& id) {
  const LentPage& page = *leaving.page;
  const SharedReply reply{.tag = page.tag};
  // The transport only reads it.
  const rdma::ConstBytes bytes = page.bytes;
  VMEM_ASSIGN(leaving.slab, node_.transport().register_slab({const_cast<std::byte*>(bytes.data()), bytes.size()}));
  VMEM_ASSIGN(const auto header, rdma::wire::write({.version = node_.peers().version(leaving.peer),
                                                    .kind = Kind::fetched_shared,
                                                    .request = leaving.request,
                                                    .payload_bytes = bytes.size()},
                                                   rdma::wire::body_of(reply)));
  const rdma::ConstBytes payload[] = {bytes};
  rdma::Send send{
      .peer = leaving.peer, .header = header, .payload = payload, .deadline_us = node_.clock().now_us() + kSendUs};
  VMEM_TRY(node_.transport().send({&send, 1}));
  id = send.id;
  return {};
}

// Pages that are being sent would be in use until their readers took them.
void PageServer::quiesce() {
  quiescing_ = true;
  for (const PeerId peer : node_.outbox().waiting()) node_.peers().close(peer);
  for (const auto& [id, leaving] : leaving_) node_.peers().close(leaving->peer);
}

void PageServer::sent(SendId id) {
  const auto found = leaving_.extract(id);
  if (found.empty()) return;
  ++pages_;
  bytes_ += found.mapped()->page->bytes.size();
}

// Without an answer, the other node asks again.
void PageServer::answer(PeerId to, const rdma::wire::RequestId& request, const SharedReply& reply) {
  const auto header =
      rdma::wire::write({.version = node_.peers().version(to), .kind = Kind::fetched_shared, .request = request},
                        rdma::wire::body_of(reply));
  if (!header) return;
  rdma::Send send{.peer = to, .header = *header, .deadline_us = node_.clock().now_us() + kSendUs};
  (void)node_.transport().send({&send, 1});
}

}  // namespace vmem::sharing
