#include "tiers/slot_records.hpp"

#include <atomic>
#include <cstring>
#include <utility>

#include "pagetable/types.hpp"

namespace vmem::tiers {
namespace {

// Compares in flight; more than start before the first ends in practice. If used up, can_compare()
// is false.
constexpr std::uint32_t kComparesMax = 256;

}  // namespace

Status SlotRecords::create(const gpu::DriverRef& driver, std::size_t slots) {
  VMEM_ASSIGN(records_, gpu::PinnedBuffer::create(driver, (slots + kComparesMax) * sizeof(gpu::SlotRecord)));
  std::memset(records_.data(), 0, records_.bytes());
  VMEM_TRY(piece_sums_.create(driver, slots * pagetable::kGranuleBytes));
  slots_.resize(slots);
  for (std::uint32_t i = 0; i < kComparesMax; ++i) compares_.push_back(std::uint32_t(slots) + i);
  return {};
}

void SlotRecords::reset() {
  slots_.clear();
  compares_.clear();
  piece_sums_.reset();
  records_.reset();
}

void SlotRecords::forget(SlotId slot) {
  if (slot >= slots_.size()) return;
  slots_[slot].known = false;
  slots_[slot].learning = 0;
}

std::optional<gpu::Fingerprint> SlotRecords::fingerprint(SlotId slot) const {
  if (!known(slot) || slots_[slot].learning != 0) return std::nullopt;
  return record(slot).last;
}

// A slot's id may be of another size than before.
void SlotRecords::begin_learning(SlotId slot, std::uint64_t bytes) {
  PieceSums::Sums& pieces = slots_[slot].pieces;
  if (pieces.size() == gpu::pieces_of(bytes / sizeof(std::uint64_t))) return;
  piece_sums_.give_back(std::exchange(pieces, {}));
  pieces = piece_sums_.take(bytes);
}

void SlotRecords::learning(SlotId slot, std::uint64_t load) {
  slots_[slot].known = true;
  slots_[slot].learning = load;
}

// Without effect if the slot was reallocated or written since.
void SlotRecords::learned(SlotId slot, std::uint64_t load) {
  if (slots_[slot].learning == load) slots_[slot].learning = 0;
}

std::optional<std::uint64_t> SlotRecords::changed_bytes(SlotId slot) {
  if (slot >= slots_.size()) return std::nullopt;
  gpu::SlotRecord& now = record(slot);
  Slot& seen = slots_[slot];
  const std::uint32_t changes = std::atomic_ref(now.changes).load(std::memory_order_acquire);
  if (std::exchange(seen.changes, changes) == changes) return std::nullopt;
  const std::uint64_t words = std::atomic_ref(now.changed_words).load(std::memory_order_relaxed);
  return (words - std::exchange(seen.changed_words, words)) * sizeof(std::uint64_t);
}

std::uint32_t SlotRecords::begin_compare(const gpu::Fingerprint& with) {
  const std::uint32_t index = compares_.back();
  compares_.pop_back();
  record(index).last = with;
  record(index).changes = 0;
  return index;
}

bool SlotRecords::end_compare(std::uint32_t index) {
  compares_.push_back(index);
  return record(index).changes != 0;
}

}  // namespace vmem::tiers
