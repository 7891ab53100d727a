#include "rdma/lending/remote_tier/remote_tier.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <utility>

#include "base/sizes.hpp"

namespace vmem::rdma {

using tiers::SlotId;
using tiers::Transfer;

namespace {

constexpr std::uint64_t kMostLeaveUs = 300'000;  // lenders notice the end by themselves, later

// Per channel: one page in transfer, one being sealed, checked or answered.
std::uint32_t busy_pages(std::uint32_t channels) { return std::max(tiers::TierInfo{}.busy_pages, 2 * channels); }

std::string lent_words(const wire::MediumBytes& lent) {
  const std::string all = format_bytes(lent.sum());
  return lent.hbm == 0 ? all : fmt::format("{}, {} of it HBM", all, format_bytes(lent.hbm));
}

}  // namespace

Result<std::unique_ptr<RemoteTier>> RemoteTier::create(Config config, Node& node) {
  std::unique_ptr<RemoteTier> tier(new RemoteTier(std::move(config), node));
  VMEM_TRY(tier->open());
  return tier;
}

RemoteTier::RemoteTier(Config config, Node& node)
    : config_(std::move(config)),
      node_(node),
      info_{.name = "remote", .busy_pages = busy_pages(config_.channels)},
      placer_(config_.peers, config_.replicas,
              config_.last_resort ? CopyPlacer::LastResort::draining_nodes : CopyPlacer::LastResort::none,
              config_.borrow_bytes),
      contacts_(config_.peers, config_.credentials),
      ledger_(config_.on_ready) {}

RemoteTier::Network::Network(const RemoteConfig& config, RemoteTier& tier)
    : lenders(config, {tier.node_, tier, tier.placer_, pages, tier.contacts_, tier.returns_, tier.counters_}),
      sizing(config, {lenders, tier.placer_, tier.node_.clock(), tier.need_}),
      rates(tier.placer_, tier.node_.clock()),
      jobs(config, {tier.node_, *tier.workers_, lenders, rates, tier.placer_, pages, *tier.protection_, tier.ledger_,
                    tier.counters_}),
      repairs(config, {tier.node_, *tier.workers_, lenders, tier.placer_, pages, *tier.protection_, tier.counters_}) {}

Status RemoteTier::open() {
  VMEM_ASSIGN(protection_, PageProtection::create(config_.protection, info_.busy_pages));
  workers_ = std::make_unique<tiers::Workers>("vmem-node-work", config_.own_workers ? config_.workers : 0,
                                              [this](tiers::Inbox::Task task) { inbox_.post(std::move(task)); });
  network_.emplace(config_, *this);
  node_.add(*this);
  return {};
}

RemoteTier::~RemoteTier() {
  if (!network_) return;
  if (config_.own_workers) {
    finish();
    leave();
  }
  node_.remove(*this);
  workers_.reset();
  network_->jobs.clear();
  inbox_.clear();
}

void RemoteTier::follow(std::vector<NamedLender> lenders) {
  inbox_.post([this, lenders = std::move(lenders)] { network_->lenders.follow(lenders); });
}

void RemoteTier::wait_for_lenders(std::uint64_t most_us) {
  const auto followed = std::make_shared<std::promise<void>>();
  inbox_.post([followed] { followed->set_value(); });  // after what follow() posted before
  (void)followed->get_future().wait_for(std::chrono::microseconds(most_us));
  contacts_.settle(most_us);
}

void RemoteTier::leave() {
  inbox_.post([this] { network_->lenders.return_leases(); });
  (void)returns_.wait(kMostLeaveUs);
}

std::string RemoteTier::describe() const {
  std::string text;
  for (std::uint32_t i = 0; i < placer_.nodes(); ++i)
    text += fmt::format("{}{} by {}, {}", text.empty() ? "" : "; ", placer_.address(i), contacts_.path(i),
                        lent_words(placer_.room(i).usable + placer_.room(i).obtainable));
  return text;
}

// ---- the mover's calls ----

void RemoteTier::release(SlotId slot) {
  inbox_.post([this, slot, copies = placer_.release(slot)] {
    network_->pages.forget(slot);
    for (const CopyPlace& copy : copies) network_->lenders.release(copy);
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

void RemoteTier::hurry(std::uint64_t transfer) {
  inbox_.post([this, transfer] { network_->jobs.hurry(transfer); });
}

tiers::Finished RemoteTier::finish() noexcept {
  inbox_.post([this] { network_->jobs.hurry_all(); });
  ledger_.finish();
  return tiers::Finished::all_ended;
}

std::string RemoteTier::where(SlotId slot) const {
  std::string nodes = placer_.where(slot);
  return nodes.empty() ? std::string(info_.name) : nodes;
}

std::uint64_t RemoteTier::need(std::uint64_t bytes) {
  if (!config_.by_need) return 0;
  const std::uint64_t ticket = need_.set(bytes);
  node_.wake();
  return ticket;
}

// ---- the node's thread ----

bool RemoteTier::step() {
  bool did = inbox_.run();
  did |= network_->lenders.find_dead();
  network_->lenders.ask_again();
  did |= network_->sizing.go_on();
  did |= network_->jobs.go_on();
  network_->lenders.note_busy();
  network_->rates.settle();
  did |= network_->repairs.go_on(!ledger_.idle());
  did |= network_->lenders.leave_drained();
  return did;
}

void RemoteTier::notice(const Peer& from, const wire::Parsed& message) {
  if (message.header.kind != wire::Kind::allocated) return;
  if (const auto lent = wire::read_lent(message.body, from.version)) network_->lenders.revised(from.id, *lent);
}

}  // namespace vmem::rdma
