#include "rdma/lending/remote_tier/remote_tier.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/sizes.hpp"

namespace vmem::rdma {

using tiers::SlotId;
using tiers::Transfer;
using wire::Kind;

namespace {

constexpr std::uint64_t kMostLeaveUs = 300'000;  // lenders notice the end by themselves, later

// Per channel: one page in transfer, one being sealed, checked or answered.
std::uint32_t busy_pages(std::uint32_t channels) { return std::max(tiers::TierInfo{}.busy_pages, 2 * channels); }

}  // namespace

Result<std::unique_ptr<RemoteTier>> RemoteTier::create(Config config) {
  std::unique_ptr<RemoteTier> tier(new RemoteTier(std::move(config)));
  VMEM_TRY(tier->open());
  return tier;
}

RemoteTier::RemoteTier(Config config)
    : config_(std::move(config)),
      info_{.name = "remote", .busy_pages = busy_pages(config_.channels)},
      placer_(config_.peers, config_.replicas),
      contacts_(config_.peers, config_.credentials),
      ledger_(config_.on_ready) {}

RemoteTier::Network::Network(const RemoteConfig& config, Transport& transport, RemoteTier& tier)
    : requests(transport, *config.clock, config.self, config.request_us),
      links(config, {transport, requests, tier.placer_, pages, tier.contacts_, tier.counters_}),
      jobs(config,
           {transport, *tier.workers_, links, tier.placer_, pages, *tier.protection_, tier.ledger_, tier.counters_}) {}

Status RemoteTier::open() {
  VMEM_ASSIGN(protection_, PageProtection::create(config_.protection, info_.busy_pages));
  VMEM_ASSIGN(transport_, config_.make_transport(*this));
  workers_ = std::make_unique<tiers::Workers>("vmem-node-work", config_.own_thread ? config_.workers : 0,
                                              [this](tiers::Inbox::Task task) { inbox_.post(std::move(task)); });
  network_.emplace(config_, *transport_, *this);
  if (config_.own_thread) thread_ = std::make_unique<ProgressThread>(*transport_, [this] { return step(); });
  return {};
}

RemoteTier::~RemoteTier() {
  if (thread_) {
    finish();
    leave();
  }
  thread_.reset();
  workers_.reset();
  if (network_) {
    network_->requests.clear();
    network_->jobs.clear();
  }
  inbox_.clear();
  transport_.reset();
}

void RemoteTier::leave() {
  inbox_.post([this] {
    if (const auto leases = network_->links.return_leases()) returns_.sent(*leases);
  });
  (void)returns_.wait(kMostLeaveUs);
}

std::string RemoteTier::describe() const {
  std::string text;
  for (std::uint32_t i = 0; i < config_.peers.size(); ++i)
    text += fmt::format("{}{} by {}, {}", text.empty() ? "" : "; ", config_.peers[i], contacts_.path(i),
                        format_bytes(placer_.lent_bytes(i)));
  return text;
}

// ---- the mover's calls ----

void RemoteTier::release(SlotId slot) {
  inbox_.post([this, slot, copies = placer_.release(slot)] {
    network_->pages.forget(slot);
    for (const CopyPlace& copy : copies) network_->links.release(copy);
  });
}

Status RemoteTier::submit(std::span<Transfer> transfers) {
  for (Transfer& transfer : transfers) transfer.id = 0;
  for (Transfer& transfer : transfers) {
    auto job = std::make_shared<PageJob>();
    job->transfer = transfer;
    transfer.id = ledger_.begin(transfer.direction, [&](std::uint64_t id) {
      job->transfer.id = id;
      inbox_.post([this, job] { network_->jobs.begin(job); });
    });
  }
  return {};
}

Status RemoteTier::poll(std::vector<tiers::Completion>& completions) {
  ledger_.poll(completions);
  return {};
}

tiers::Finished RemoteTier::finish() noexcept {
  inbox_.post([this] { network_->jobs.hurry(); });
  ledger_.finish();
  return tiers::Finished::all_ended;
}

std::string RemoteTier::where(SlotId slot) const {
  std::string nodes = placer_.where(slot);
  return nodes.empty() ? std::string(info_.name) : nodes;
}

// ---- the tier's thread ----

bool RemoteTier::step() {
  bool did = events_.handle_some(*transport_, [&](Event& event) { handle(event); });
  did |= inbox_.run();
  did |= network_->links.find_dead();
  did |= network_->links.keep_connected();
  did |= network_->links.expire();
  did |= network_->jobs.go_on();
  return did;
}

std::optional<Claim> RemoteTier::claim(PeerId peer, ConstBytes header, std::uint64_t payload_bytes) {
  return network_->requests.claim(peer, header, payload_bytes);
}

void RemoteTier::handle(Event& event) {
  std::visit([&](auto& what) { handle(event.peer, what); }, event.what);
  handle_ended_requests();
}

void RemoteTier::handle(PeerId peer, const Message& message) {
  // claim() has parsed the header of a message with a token.
  if (message.token != 0) {
    if (network_->requests.landed(message.token)) network_->links.heard(peer);
    return;
  }
  const auto parsed = wire::parse(message.header);
  if (!parsed || !network_->links.knows(peer)) return;
  if (parsed->header.request.sequence == wire::kUnasked) {
    if (const auto lent = wire::read_body<wire::Lent>(parsed->body)) network_->links.shrunk(peer, *lent);
    return;
  }
  if (network_->requests.answered(peer, *parsed)) network_->links.heard(peer);
}

void RemoteTier::handle_ended_requests() {
  while (const auto request = network_->requests.next_ended()) {
    if (request->job) {
      network_->jobs.ended(*request);
    } else if (request->kind == Kind::release) {
      returns_.ended();
    } else if (request->lent) {
      network_->links.lent(request->node, *request->lent);
    } else if (request->kind == Kind::ping && request->answer) {
      network_->links.pong(request->node);
    }
  }
}

}  // namespace vmem::rdma
