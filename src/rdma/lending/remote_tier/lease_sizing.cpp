#include "rdma/lending/remote_tier/lease_sizing.hpp"

#include <algorithm>
#include <utility>

#include "rdma/lending/remote_tier/lease_sizes.hpp"

namespace vmem::rdma {
namespace {

constexpr std::uint64_t kKeepUs = 2'000'000;  // leases of a need that has fallen
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
  if (parts_.lenders.leaves()) {  // nothing is asked for any more
    if (!answered_) answer();
    return false;
  }
  const std::uint64_t now = parts_.clock.now_us();
  const bool refreshes = now >= refresh_us_;
  if (refreshes) refresh_us_ = now + kRefreshUs;
  const auto ready = lenders();
  const auto wanted = lease_sizes(ready, wanted_bytes(), config_.replicas);
  bool did = false, waits = false;
  for (std::size_t i = 0; i < ready.size(); ++i) {
    const std::uint32_t node = ready[i].node;
    if (!parts_.lenders.is_resizable(node)) continue;
    asked_.resize(std::max<std::size_t>(asked_.size(), node + 1));
    const bool stale = refreshes || (!answered_ && lacks() && asked_[node].ticket < ticket_);
    did |= !parts_.lenders.is_asking(node) && (size(ready[i], wanted[i]) || (stale && refresh(node)));
  }
  for (std::uint32_t node = 0; node < parts_.placer.nodes(); ++node) waits |= parts_.lenders.is_asking(node);
  if (!answered_ && !waits) answer();
  return did;
}

// Others take over the share of one whose connection is ending.
std::vector<CopyPlacer::Lendable> LeaseSizing::lenders() const {
  auto all = parts_.placer.lendable();
  std::erase_if(all, [this](const CopyPlacer::Lendable& each) { return !parts_.lenders.is_ready(each.node); });
  return all;
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

// Pages may take more room than they need: copies of pages that are above, too. All have a place if
// they leave one lender for others, also beside gaps.
std::uint64_t LeaseSizing::wanted_bytes() const {
  const std::uint64_t used = parts_.placer.usage().used_bytes;
  bool moves = false;
  for (std::uint32_t node = 0; node < parts_.placer.nodes(); ++node) moves |= parts_.placer.room(node).moves;
  return std::max(with_slack(most_bytes_), moves ? with_slack(used) : used);
}

// Growth and returns in one message: what is returned was free, and grows nowhere else. What a
// lender did not do is asked for again when something has changed, or after a while.
bool LeaseSizing::size(const CopyPlacer::Lendable& lender, const wire::MediumBytes& wanted) {
  wire::MediumBytes bytes = parts_.placer.room(lender.node).leased;
  bool grows = false, shrinks = false;
  for (const wire::Medium medium : wire::kMedia) {
    const std::uint64_t usable = lender.usable[medium];
    const std::uint64_t kept = std::max(wanted[medium], usable - lender.free[medium]);
    if (wanted[medium] > usable) {
      grows = true;
      bytes[medium] = std::max(bytes[medium], wanted[medium]);
    } else if (is_surplus(usable, kept)) {
      shrinks = true;
      bytes[medium] = kept;
    }
  }
  if (!grows && !shrinks) return false;
  const Asked ask{ticket_, parts_.clock.now_us(), bytes, lender.usable};
  Asked& last = asked_[lender.node];
  const bool same = last.ticket == ask.ticket && last.bytes == ask.bytes && last.usable == ask.usable;
  if (same && ask.at_us < last.at_us + kRefreshUs) return false;
  if (!parts_.lenders.resize(lender.node, bytes, [this] { return parts_.need.ticket() == ticket_; })) return false;
  last = ask;
  return true;
}

bool LeaseSizing::refresh(std::uint32_t node) {
  asked_[node] = {.ticket = ticket_};
  parts_.lenders.ask_for(node, {parts_.placer.room(node).leased});
  return true;
}

void LeaseSizing::answer() {
  answered_ = true;
  parts_.need.answer(ticket_, lacks() ? parts_.lenders.shortage() : std::string());
  if (config_.on_ready) config_.on_ready();
}

}  // namespace vmem::rdma
