#include "tools/trace/blocks.hpp"

#include <algorithm>
#include <iterator>

namespace vmem::tools {

void Blocks::see(const trace::Event& event) {
  if (const auto* begins = std::get_if<trace::BlockBegins>(&event.body)) {
    known_[begins->block] = *begins;
    live_[begins->granule] = begins->block;
    live_bytes_ += begins->bytes;
    peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  } else if (const auto* ends = std::get_if<trace::BlockEnds>(&event.body)) {
    const auto found = known_.find(ends->block);
    if (found == known_.end()) return;
    const auto place = live_.find(found->second.granule);
    if (place == live_.end() || place->second != ends->block) return;
    live_bytes_ -= found->second.bytes;
    live_.erase(place);
  }
}

const trace::BlockBegins* Blocks::find(trace::Block block) const {
  const auto found = known_.find(block);
  return found == known_.end() ? nullptr : &found->second;
}

const trace::BlockBegins* Blocks::at(std::uint32_t granule) const {
  auto next = live_.upper_bound(granule);
  if (next == live_.begin()) return nullptr;
  const trace::BlockBegins& block = known_.at(std::prev(next)->second);
  return granule - block.granule < block.granules ? &block : nullptr;
}

}  // namespace vmem::tools
