#include "cluster/directory/takeover.hpp"

#include <algorithm>
#include <utility>

#include "cluster/enrollment/node_record.hpp"

namespace vmem::cluster::directory {

void Takeover::stop() {
  call_.drop();
  due_us_.clear();
  look_ = false;
}

std::optional<StoredRegion> Takeover::take_won() { return std::exchange(won_, std::nullopt); }

bool Takeover::is_orphan(const StoredRegion& region) const {
  const NodeId home = region.record.home;
  return home != context_.self && context_.view.over(home, region.modified);
}

std::uint64_t Takeover::wait_us(const RegionRecord& region) const {
  const KnownNode* const self = context_.view.find(context_.self);
  const bool daemon = self != nullptr && self->daemon;
  const bool draining = self != nullptr && self->draining;
  const std::uint64_t rank = (region.place_of(context_.self) ? 0 : 4) + (draining ? 2 : 0) + (daemon ? 0 : 1);
  return rank * context_.config.race_us + spread_us(context_.config.race_us, context_.random);
}

void Takeover::look(std::uint64_t now_us) {
  std::erase_if(due_us_, [&](const auto& each) {
    const StoredRegion* const region = context_.index.find(each.first);
    return region == nullptr || !is_orphan(*region);
  });
  for (const auto& [serial, region] : context_.index.regions())
    if (is_orphan(region) && wants_(region.record) && !due_us_.contains(serial))
      due_us_[serial] = now_us + wait_us(region.record);
}

void Takeover::handle(const Reply& reply) {
  const auto* const commit = std::get_if<Committed>(&reply.what);
  if (commit != nullptr && commit->done) won_ = StoredRegion{.record = next_, .modified = reply.revision};
  unsure_ = true;
}

bool Takeover::try_next(std::uint64_t now_us) {
  const auto due = std::ranges::find_if(due_us_, [&](const auto& each) { return each.second <= now_us; });
  if (due == due_us_.end()) return false;
  const StoredRegion* const region = context_.index.find(due->first);
  if (region == nullptr || !is_orphan(*region)) {
    due_us_.erase(due);
    return true;
  }
  due->second = now_us + wait_us(region->record) + context_.config.poll_us;
  next_ = region->record;
  next_.home = context_.self;
  next_.term = Term{static_cast<std::uint64_t>(next_.term) + 1};
  const std::string key = region_key(next_.serial);
  call_ = calls_.post(Commit{.conditions = {{.key = key, .modified = region->modified},
                                            {.key = node_key(region->record.home), .modified = {}},
                                            {.key = node_key(context_.self), .modified = context_.self_record}},
                             .edits = {{.key = key, .value = json_of(next_), .lease = {}}}});
  return true;
}

bool Takeover::step(std::uint64_t now_us) {
  if (const std::optional<Reply> reply = call_.take()) {
    handle(*reply);
    return true;
  }
  if (std::exchange(look_, false)) look(now_us);
  return !call_.pending() && try_next(now_us);
}

std::uint64_t Takeover::due_us() const {
  if (call_.pending()) return UINT64_MAX;
  std::uint64_t due_us = look_ ? 0 : UINT64_MAX;
  for (const auto& [serial, each_us] : due_us_) due_us = std::min(due_us, each_us);
  return due_us;
}

}  // namespace vmem::cluster::directory
