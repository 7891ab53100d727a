// What a tier knows of the bytes in its slots: fingerprints that the GPU makes of frames, and
// compares with others (gpu/fingerprinter.hpp). The mover only.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "gpu/handles.hpp"
#include "gpu/kernels/fingerprint.hpp"
#include "tiers/piece_sums.hpp"
#include "tiers/tier.hpp"

namespace vmem::tiers {

class SlotRecords {
 public:
  // For slots with ids below `slots`, a granule or more each. Errors: the driver's. REQUIRES: a
  // current context, also for reset.
  Status create(const gpu::DriverRef& driver, std::size_t slots);
  // Nothing is known of any slot from here on.
  void reset();
  explicit operator bool() const { return bool(records_); }

  // The slot's fingerprint is known, or will be once a load that is in flight has ended.
  bool known(SlotId slot) const { return slot < slots_.size() && slots_[slot].known; }
  // Its bytes were overwritten, or may be without the tier's knowledge.
  void forget(SlotId slot);
  std::optional<gpu::Fingerprint> fingerprint(SlotId slot) const;
  // For Fingerprinter, of a slot for which begin_learning was called.
  gpu::SlotRecord* of(SlotId slot) const { return &record(slot); }
  gpu::Fingerprint* pieces(SlotId slot) const { return slots_[slot].pieces.data(); }

  // Before a load and its fingerprint are queued, after they have been, and when they have ended.
  void begin_learning(SlotId slot, std::uint64_t bytes);
  void learning(SlotId slot, std::uint64_t load);
  void learned(SlotId slot, std::uint64_t load);
  // How many bytes the GPU found changed, and copied, since the last call; nullopt: it found none.
  // With two stores of a slot in flight the first is told of both.
  std::optional<std::uint64_t> changed_bytes(SlotId slot);

  // Records for compares, which concern no slot.
  bool can_compare() const { return !compares_.empty(); }
  std::uint32_t begin_compare(const gpu::Fingerprint& with);
  gpu::SlotRecord* compare(std::uint32_t index) const { return &record(index); }
  bool end_compare(std::uint32_t index);  // true: it differed

 private:
  struct Slot {
    bool known = false;
    PieceSums::Sums pieces;           // if known, of its bytes; empty: none could be had
    std::uint32_t changes = 0;        // last value seen of the record's `changes`
    std::uint64_t changed_words = 0;  // and of its `changed_words`
    std::uint64_t learning = 0;       // running load that computes the fingerprint; 0: none
  };
  gpu::SlotRecord& record(std::size_t index) const {
    return reinterpret_cast<gpu::SlotRecord*>(records_.data())[index];
  }

  gpu::PinnedBuffer records_;            // one per slot, then those for compares
  std::vector<std::uint32_t> compares_;  // free records for compares
  PieceSums piece_sums_;
  std::vector<Slot> slots_;
};

}  // namespace vmem::tiers
