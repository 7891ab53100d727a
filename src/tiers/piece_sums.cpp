#include "tiers/piece_sums.hpp"

namespace vmem::tiers {

Status PieceSums::create(const gpu::DriverRef& driver, std::uint64_t slots_bytes) {
  const std::size_t count = slots_bytes / sizeof(std::uint64_t) / gpu::kPieceWords;
  if (count == 0) return {};
  VMEM_ASSIGN(memory_, gpu::PinnedBuffer::create(driver, count * sizeof(gpu::Fingerprint)));
  rest_ = {reinterpret_cast<gpu::Fingerprint*>(memory_.data()), count};
  return {};
}

void PieceSums::reset() {
  free_.clear();
  rest_ = {};
  memory_.reset();
}

PieceSums::Sums PieceSums::take(std::uint64_t slot_bytes) {
  const std::size_t count = gpu::pieces_of(slot_bytes / sizeof(std::uint64_t));
  const auto lot = free_.lower_bound(count);
  if (lot == free_.end()) {
    if (rest_.size() < count) return {};
    const Sums sums = rest_.first(count);
    rest_ = rest_.subspan(count);
    return sums;
  }
  const Sums sums = lot->second.back();
  lot->second.pop_back();
  if (lot->second.empty()) free_.erase(lot);
  give_back(sums.subspan(count));
  return sums.first(count);
}

void PieceSums::give_back(Sums sums) {
  if (!sums.empty()) free_[sums.size()].push_back(sums);
}

}  // namespace vmem::tiers
