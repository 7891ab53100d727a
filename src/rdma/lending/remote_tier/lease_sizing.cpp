#include "rdma/lending/remote_tier/lease_sizing.hpp"

#include <algorithm>
#include <utility>

#include "rdma/lending/remote_tier/lease_sizes.hpp"

namespace vmem::rdma {
namespace {

constexpr std::uint64_t kKeepUs = 2'000'000;     // leases of a need that has fallen
constexpr std::uint64_t kLookUs = 20'000;
constexpr std::uint64_t kRefreshUs = 5'000'000;  // other nodes change what a lender has

}  // namespace

// ---- what is needed ----

std::uint64_t LeaseSizing::Need::set(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  state_.now_bytes = bytes;
  state_.most_bytes = std::max(state_.most_bytes, bytes);
  ticket_.store(++state_.ticket, std::memory_order_release);
  return state_.ticket;
}

bool LeaseSizing::Need::was_answered(std::uint64_t ticket) const {
  const std::lock_guard lock(mutex_);
  return answered_ >= ticket;
}

std::string LeaseSizing::Need::shortage() const {
  const std::lock_guard lock(mutex_);
  return shortage_;
}

LeaseSizing::Need::State LeaseSizing::Need::read() {
  const std::lock_guard lock(mutex_);
  State read = state_;
  read.most_bytes = std::max(read.most_bytes, read.now_bytes);
  state_.most_bytes = 0;
  return read;
}

void LeaseSizing::Need::answer(std::uint64_t ticket, std::string shortage) {
  const std::lock_guard lock(mutex_);
  answered_ = ticket;
  shortage_ = std::move(shortage);
}

// ---- sizes ----

bool LeaseSizing::go_on() {
  if (!config_.by_need || !is_time()) return false;
  follow(parts_.need.read());
  const std::uint64_t now = parts_.clock.now_us();
  const bool refreshes = now >= refresh_us_;
  if (refreshes) refresh_us_ = now + kRefreshUs;
  const auto lenders = parts_.placer.lendable();
  const auto wanted = lease_sizes(lenders, with_slack(most_bytes_), config_.replicas);
  bool did = false, waits = false;
  for (std::size_t i = 0; i < lenders.size(); ++i) {
    const std::uint32_t node = lenders[i].node;
    if (!parts_.lenders.is_resizable(node)) continue;
    asked_.resize(std::max<std::size_t>(asked_.size(), node + 1));
    const bool stale = refreshes || (!answered_ && lacks() && asked_[node] < ticket_);
    did |= !parts_.lenders.is_asking(node) && (size(lenders[i], wanted[i]) || (stale && refresh(node)));
    waits |= parts_.lenders.is_asking(node);
  }
  if (!answered_ && !waits) answer();
  return did;
}

// Each step while somebody waits.
bool LeaseSizing::is_time() {
  if (answered_ && parts_.need.ticket() == ticket_ && parts_.clock.now_us() < look_us_) return false;
  look_us_ = parts_.clock.now_us() + kLookUs;
  return true;
}

void LeaseSizing::follow(const Need::State& need) {
  const std::uint64_t now = parts_.clock.now_us();
  if (need.most_bytes >= most_bytes_) {
    most_bytes_ = need.most_bytes;
    most_until_us_ = now + kKeepUs;
  } else if (now >= most_until_us_) {
    most_bytes_ = need.most_bytes;
  }
  if (need.ticket == ticket_) return;
  ticket_ = need.ticket;
  answered_ = false;
}

// Growth and returns in one message: what is returned was free, and grows nowhere else.
bool LeaseSizing::size(const CopyPlacer::Lendable& lender, const wire::MediumBytes& wanted) {
  wire::MediumBytes bytes = parts_.placer.leased(lender.node);
  bool grows = false, shrinks = false;
  for (const wire::Medium medium : wire::kMedia) {
    const std::uint64_t usable = lender.usable[medium], most = std::min(wanted[medium], config_.borrow_bytes);
    const std::uint64_t kept = std::max(most, usable - lender.free[medium]);
    if (most > usable) {
      grows = true;
      bytes[medium] = std::max(bytes[medium], most);
    } else if (is_surplus(usable, kept)) {
      shrinks = true;
      bytes[medium] = kept;
    }
  }
  if (!grows && !shrinks) return false;
  if (!parts_.lenders.resize(lender.node, bytes)) return false;
  asked_[lender.node] = ticket_;
  return true;
}

bool LeaseSizing::refresh(std::uint32_t node) {
  asked_[node] = ticket_;
  parts_.lenders.refresh(node);
  return true;
}

void LeaseSizing::answer() {
  answered_ = true;
  parts_.need.answer(ticket_, lacks() ? parts_.lenders.shortage() : std::string());
  if (config_.on_ready) config_.on_ready();
}

}  // namespace vmem::rdma
