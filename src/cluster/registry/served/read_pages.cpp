#include "cluster/registry/served/read_pages.hpp"

#include <algorithm>

namespace vmem::cluster::served {
namespace {

// Also keeps the list short, which is searched from its begin.
constexpr std::size_t kMostReadings = 64;

}  // namespace

const ReadPages::Reading* ReadPages::find(const Place& place, const std::string& prefix, Revision revision) {
  const auto found = std::ranges::find_if(readings_, [&](const Reading& each) {
    return each.revision == revision && each.prefix == prefix && each.place == place;
  });
  if (found == readings_.end()) return nullptr;
  readings_.splice(readings_.begin(), readings_, found);
  return &readings_.front();
}

const ReadPages::Reading& ReadPages::keep(Reading reading) {
  bytes_ += reading.bytes.size();
  readings_.push_front(std::move(reading));
  while (readings_.size() > 1 && (bytes_ > most_bytes_ || readings_.size() > kMostReadings)) {
    bytes_ -= readings_.back().bytes.size();
    readings_.pop_back();
  }
  return readings_.front();
}

}  // namespace vmem::cluster::served
