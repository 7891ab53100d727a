#include "cluster/enrollment/holdings_desk.hpp"

#include "base/log.hpp"

namespace vmem::cluster {
namespace {

constexpr std::uint64_t kRepeatedPolls = 10;

}  // namespace

void HoldingsDesk::begin(NodeId self) {
  end();
  self_ = self;
}

void HoldingsDesk::end() {
  self_ = {};
  call_.drop();
  sent_.reset();
  sent_us_ = 0;
}

void HoldingsDesk::failed(const Error& error) {
  sent_.reset();
  if (is_away(error)) return;
  if (const auto outage = failures_.failed())
    VMEM_LOG_WARN("the registry was not told what this node holds, {} times in {} s: {}", outage->failures,
                  outage->seconds, error.message);
}

bool HoldingsDesk::step(std::uint64_t now_us) {
  if (const std::optional<Reply> reply = call_.take()) {
    const auto* const error = std::get_if<Error>(&reply->what);
    if (error == nullptr) (void)failures_.ended();
    if (error != nullptr) failed(*error);
    return true;
  }
  if (now_us < due_us()) return false;
  sent_ = wanted_;
  sent_us_ = now_us;
  call_ = calls_.post(Commit{.conditions = {},
                             .edits = {{.key = holds_key(self_), .value = json_of(*sent_), .lease = lease_.lease()}}});
  return true;
}

std::uint64_t HoldingsDesk::due_us() const {
  if (self_ == NodeId{} || !wanted_ || call_.pending()) return UINT64_MAX;
  if (sent_us_ == 0) return 0;
  const bool known = sent_ && sent_->holds_as(*wanted_);
  return sent_us_ + (known ? kRepeatedPolls : 1) * config_.poll_us;
}

}  // namespace vmem::cluster
