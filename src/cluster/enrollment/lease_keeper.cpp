#include "cluster/enrollment/lease_keeper.hpp"

#include <algorithm>
#include <utility>

namespace vmem::cluster {
namespace {

constexpr std::size_t kMostRenewals = 8;  // in flight
constexpr std::uint64_t kSecondUs = 1'000'000;

}  // namespace

void LeaseKeeper::begin() {
  state_ = State::granting;
  backoff_.reset();
  due_us_ = 0;
}

void LeaseKeeper::abandon() {
  state_ = State::idle;
  lease_ = {};
  call_.drop();
  renewals_.clear();
  late_.reset();
  fence_at_us_ = 0;
}

void LeaseKeeper::end() {
  if (state_ == State::ending) return;
  const LeaseId lease = lease_;
  const bool held = state_ == State::held;
  abandon();
  if (!held) return;
  lease_ = lease;
  state_ = State::ending;
  backoff_.reset();
  due_us_ = 0;
}

std::uint64_t LeaseKeeper::fence_after(std::uint64_t sent_us, std::uint32_t seconds) const {
  // A registry that gives less than asked for shortens the time, by as much.
  const std::uint64_t asked_us = config_.lease_s * kSecondUs;
  const std::uint64_t missing_us = asked_us - std::min(asked_us, seconds * kSecondUs);
  return sent_us + config_.fenced_after_us() - std::min(config_.fenced_after_us(), missing_us);
}

void LeaseKeeper::confirm(std::uint64_t read_sent_us) {
  if (!late_ || read_sent_us < late_->answered_us) return;
  fence_at_us_ = std::max(fence_at_us_, late_->fence_at_us);
  late_.reset();
}

void LeaseKeeper::renewed(const RegistryCall& call, const Renewed& renewal, std::uint64_t now_us) {
  if (renewal.seconds == 0) {
    abandon();
    state_ = State::lost;
    return;
  }
  const std::uint64_t fence_at_us = fence_after(call.sent_us(), renewal.seconds);
  if (!fenced(now_us)) {
    fence_at_us_ = std::max(fence_at_us_, fence_at_us);
  } else if (!late_ || late_->fence_at_us <= now_us) {
    late_ = Late{.fence_at_us = fence_at_us, .answered_us = now_us};
  }
  due_us_ = std::max(due_us_, call.sent_us() + config_.renew_us);
}

bool LeaseKeeper::take_renewals(std::uint64_t now_us) {
  bool moved = false;
  for (std::size_t i = 0; i < renewals_.size();) {
    const std::optional<Reply> reply = renewals_[i].take();
    if (!reply) {
      ++i;
      continue;
    }
    moved = true;
    const RegistryCall call = std::move(renewals_[i]);
    renewals_.erase(renewals_.begin() + std::ptrdiff_t(i));
    if (const auto* renewal = std::get_if<Renewed>(&reply->what)) renewed(call, *renewal, now_us);
    if (state_ != State::held) break;
  }
  return moved;
}

void LeaseKeeper::granted(const Granted& granted) {
  state_ = State::held;
  lease_ = granted.lease;
  fence_at_us_ = fence_after(call_.sent_us(), granted.seconds);
  due_us_ = call_.sent_us() + config_.renew_us;
}

bool LeaseKeeper::take_reply(std::uint64_t now_us) {
  const std::optional<Reply> reply = call_.take();
  if (!reply) return false;
  if (const auto* granted_lease = std::get_if<Granted>(&reply->what)) {
    granted(*granted_lease);
  } else if (std::holds_alternative<Ended>(reply->what)) {
    abandon();
  } else {
    due_us_ = now_us + backoff_.next_us();
  }
  return true;
}

void LeaseKeeper::post(std::uint64_t now_us) {
  if (state_ == State::granting) call_ = calls_.post(GrantLease{.seconds = config_.lease_s});
  if (state_ == State::ending) call_ = calls_.post(EndLease{.lease = lease_});
  if (state_ != State::held) return;
  renewals_.push_back(calls_.post(RenewLease{.lease = lease_}));
  due_us_ = now_us + config_.renew_again_us;
}

std::uint64_t LeaseKeeper::due_us() const {
  if (state_ == State::idle || state_ == State::lost || call_.pending()) return UINT64_MAX;
  if (state_ == State::held && renewals_.size() >= kMostRenewals) return UINT64_MAX;
  return due_us_;
}

bool LeaseKeeper::step(std::uint64_t now_us) {
  bool moved = take_reply(now_us);
  moved |= take_renewals(now_us);
  if (now_us < due_us()) return moved;
  post(now_us);
  return true;
}

}  // namespace vmem::cluster
