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
      contacts_(config_.peers, config_.credentials) {}

RemoteTier::Network::Network(const RemoteConfig& config, Transport& transport, RemoteTier& tier)
    : requests(transport, *config.clock, config.self, config.request_us),
      links(config, {transport, requests, tier.placer_, pages, tier.contacts_, tier.counters_}),
      jobs(config,
           {transport, *tier.workers_, links, tier.placer_, pages, *tier.protection_, tier.queue_, tier.counters_}) {}

Status RemoteTier::open() {
  VMEM_ASSIGN(protection_, PageProtection::create(config_.protection, info_.busy_pages));
  VMEM_ASSIGN(transport_, config_.make_transport(*this));
  workers_ = std::make_unique<Workers>(config_.own_thread ? config_.workers : 0, [this] { transport_->wake(); });
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
  (void)queue_.take();
  transport_.reset();
}

void RemoteTier::leave() {
  post(ReturnLeases{});
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

void RemoteTier::release(SlotId slot) { post(SlotRelease{slot, placer_.release(slot)}); }

Status RemoteTier::submit(std::span<Transfer> transfers) {
  for (Transfer& transfer : transfers) transfer.id = 0;
  for (Transfer& transfer : transfers) {
    auto job = std::make_shared<PageJob>();
    const std::uint64_t id = tiers::next_transfer_id();
    job->transfer = transfer;
    job->transfer.id = id;
    post(std::move(job));
    transfer.id = id;
  }
  return {};
}

Status RemoteTier::poll(std::vector<tiers::Completion>& completions) {
  queue_.poll(completions);
  return {};
}

tiers::Finished RemoteTier::finish() noexcept {
  post(Hurry{});
  queue_.finish();
  return tiers::Finished::all_ended;
}

std::string RemoteTier::where(SlotId slot) const {
  std::string nodes = placer_.where(slot);
  return nodes.empty() ? std::string(info_.name) : nodes;
}

void RemoteTier::post(JobQueue::Post post) {
  queue_.post(std::move(post));
  transport_->wake();
}

// ---- the tier's thread ----

bool RemoteTier::step() {
  bool did = events_.handle_some(*transport_, [&](Event& event) { handle(event); });
  did |= take_posts();
  did |= workers_->finish();
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

bool RemoteTier::take_posts() {
  const std::vector<JobQueue::Post> posts = queue_.take();
  for (const JobQueue::Post& post : posts) std::visit([&](const auto& what) { take(what); }, post);
  return !posts.empty();
}

void RemoteTier::take(const SlotRelease& release) {
  network_->pages.forget(release.slot);
  for (const CopyPlace& copy : release.copies) network_->links.release(copy);
}

void RemoteTier::take(ReturnLeases) {
  if (const auto leases = network_->links.return_leases()) returns_.sent(*leases);
}

}  // namespace vmem::rdma
