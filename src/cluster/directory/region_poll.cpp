#include "cluster/directory/region_poll.hpp"

#include <algorithm>

namespace vmem::cluster::directory {

void RegionPoll::stop() {
  on_ = poked_ = false;
  regions_.drop();
  names_.drop();
}

bool RegionPoll::take(std::uint64_t, RegionIndex::Changes& changes) {
  bool moved = false;
  if (const std::optional<Reply> reply = regions_.take()) {
    const auto* const read = std::get_if<Read>(&reply->what);
    if (read != nullptr && index_.take_regions(*read, reply->revision, changes)) regions_us_ = regions_.sent_us();
    if (read != nullptr && reply->revision < index_.regions_at()) poke();
    moved = true;
  }
  if (const std::optional<Reply> reply = names_.take()) {
    const auto* const read = std::get_if<Read>(&reply->what);
    if (read != nullptr && index_.take_names(*read, reply->revision)) names_us_ = names_.sent_us();
    moved = true;
  }
  return moved;
}

bool RegionPoll::step(std::uint64_t now_us, RegionIndex::Changes& changes) {
  const bool moved = take(now_us, changes);
  if (!on_ || regions_.pending() || names_.pending() || now_us < due_us()) return moved;
  poked_ = false;
  sent_us_ = now_us;
  regions_ = calls_.post(ReadPrefix{std::string(kRegionsPrefix)});
  names_ = calls_.post(ReadPrefix{std::string(kNamesPrefix)});
  return true;
}

std::uint64_t RegionPoll::due_us() const {
  if (!on_ || regions_.pending() || names_.pending()) return UINT64_MAX;
  if (sent_us_ == 0) return 0;
  return sent_us_ + (poked_ ? config_.poll_again_us : config_.poll_us);
}

}  // namespace vmem::cluster::directory
