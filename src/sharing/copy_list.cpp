#include "sharing/copy_list.hpp"

#include <iterator>

namespace vmem::sharing {

using tiers::SlotId;

void CopyList::add_region(SlotId first, std::uint32_t pages) { regions_[first].assign(pages, 0); }

void CopyList::remove_region(SlotId first) {
  const auto region = regions_.find(first);
  if (region == regions_.end()) return;
  const auto pages = static_cast<SlotId>(region->second.size());
  for (SlotId page = first; page < first + pages; ++page) remove(page);
  regions_.erase(region);
}

bool CopyList::covers(SlotId page) const {
  const auto behind = regions_.upper_bound(page);
  if (behind == regions_.begin()) return false;
  const auto& [first, loads] = *std::prev(behind);
  return page - first < loads.size();
}

std::uint64_t& CopyList::last_load(SlotId page) {
  auto& [first, loads] = *std::prev(regions_.upper_bound(page));
  return loads[page - first];
}

std::uint64_t CopyList::load(SlotId page) {
  std::uint64_t& last = last_load(page);
  const std::uint64_t now = ++loads_;
  if (Copy* const copy = find(page)) {
    auto entry = by_load_.extract(copy->loaded);
    entry.key() = copy->loaded = now;
    by_load_.insert(std::move(entry));
  }
  return std::exchange(last, now);
}

CopyList::Copy* CopyList::find(SlotId page) {
  const auto found = copies_.find(page);
  return found == copies_.end() ? nullptr : &found->second;
}

CopyList::Copy& CopyList::add(SlotId page, std::uint64_t bytes) {
  const std::uint64_t loaded = last_load(page);
  Copy& copy = copies_[page];
  try {
    by_load_.emplace(loaded, page);
  } catch (...) {
    copies_.erase(page);
    throw;
  }
  copy = {.bytes = bytes, .loaded = loaded, .ticket = ++tickets_, .place = nullptr, .stored = false};
  bytes_ += bytes;
  return copy;
}

void CopyList::remove(SlotId page) {
  const auto found = copies_.extract(page);
  if (found.empty()) return;
  by_load_.erase(found.mapped().loaded);
  bytes_ -= found.mapped().bytes;
}

std::optional<SlotId> CopyList::eldest() const {
  if (by_load_.empty()) return std::nullopt;
  return by_load_.begin()->second;
}

std::uint64_t CopyList::metadata_bytes() const {
  constexpr std::size_t kNodes = 8 * sizeof(void*);  // of both containers, and the slot
  std::uint64_t bytes = copies_.size() * (sizeof(Copy) + 2 * sizeof(std::uint64_t) + kNodes);
  for (const auto& [first, loads] : regions_) bytes += loads.size() * sizeof(std::uint64_t);
  return bytes;
}

}  // namespace vmem::sharing
