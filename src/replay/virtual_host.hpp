// Pinned host memory, or another GPU's memory, in virtual time: a tier as the mover knows it.
// Instead of bytes it keeps what contents each slot has, and so finds a page that would have come
// back with old bytes.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "replay/virtual_gpu.hpp"
#include "tiers/tier.hpp"

namespace vmem::replay {

// The contents of every granule, as a number that changes with each write.
class Contents {
 public:
  void write(std::uint32_t granule, std::uint32_t count);
  std::vector<std::uint32_t> of(std::uint32_t granule, std::uint32_t count) const;

 private:
  std::vector<std::uint32_t> versions_;
};

class VirtualHost final : public tiers::Tier, public tiers::InPlaceTier, public tiers::ComparingTier {
 public:
  struct Config {
    VirtualGpu& gpu;
    const Contents& contents;
    std::uint64_t budget_bytes = 0;
    std::uint64_t made_bytes_per_s = 0;  // at which a thread makes slots ahead of need
    VirtualGpu::Far far = VirtualGpu::Far::host;
    std::uint64_t compared_bytes_per_s = 2'000'000'000'000;
  };
  explicit VirtualHost(const Config& config) : config_(config) {}

  // Loads of a page whose contents were not those that it had last; but what the GPU wrote to a
  // slot in place is taken as right. Must stay 0.
  std::uint64_t wrong_loads() const { return wrong_loads_; }

  const tiers::TierInfo& info() const noexcept override { return info_; }
  tiers::TierUsage usage() const override;
  void expect(std::uint64_t page_bytes, std::uint64_t count) override { expected_[page_bytes] = count; }
  Result<tiers::SlotGrant> allocate(std::uint64_t page_bytes) override;
  void release(tiers::SlotId slot) override;
  Status submit(std::span<tiers::Transfer> transfers) override;
  Status poll(std::vector<tiers::Completion>& completions) override;
  tiers::Finished finish() noexcept override { return tiers::Finished::all_ended; }

  CUmemGenericAllocationHandle handle(tiers::SlotId slot) const override;
  // An address of no memory, as `contents` and `set_contents` know it.
  std::byte* host_address(tiers::SlotId slot, pagetable::Access access) const override {
    return reinterpret_cast<std::byte*>(device_address(slot, access));
  }
  CUdeviceptr device_address(tiers::SlotId slot, pagetable::Access access) const override;

  std::optional<gpu::Fingerprint> fingerprint(tiers::SlotId slot) const override;
  bool can_compare(int) const override { return true; }

  // What a slot with a page of so many granules holds; the GPU may have written to it in place.
  std::vector<std::uint32_t> contents(const std::byte* host, std::uint32_t granule, std::uint32_t granules) const {
    const Slot& slot = slots_[slot_at(host)];
    return slot.open ? config_.contents.of(granule, granules) : slot.holds;
  }
  void set_contents(const std::byte* host, const std::vector<std::uint32_t>& holds) {
    slots_[slot_at(host)].holds = holds;
  }

 private:
  struct Slot {
    std::uint64_t bytes = 0;
    std::vector<std::uint32_t> holds;
    bool known = false;  // its fingerprint
    bool used = false;
    bool open = false;  // the GPU may have written to it in place
  };
  struct InFlight {
    std::uint64_t id;
    CUevent done;
    bool changed;
    std::uint64_t copied_bytes;  // of a store with if_changed
  };
  static constexpr std::uint64_t kFirstAddress = std::uint64_t{1} << 40;
  static constexpr int kSlotShift = 28;
  static tiers::SlotId slot_at(const std::byte* host) {
    return tiers::SlotId((reinterpret_cast<std::uintptr_t>(host) - kFirstAddress) >> kSlotShift);
  }
  void make_slots();
  void drop_free(std::uint64_t bytes);  // slots of other sizes, until so many bytes fit
  std::uint64_t next_size() const;
  void submit_one(tiers::Transfer& transfer);

  const Config config_;
  const tiers::TierInfo info_{
      .name = config_.far == VirtualGpu::Far::host ? "host" : "peer", .stream_ordered = true, .addressable = true};
  mutable std::deque<Slot> slots_;
  std::map<std::uint64_t, std::vector<tiers::SlotId>> free_;
  std::map<std::uint64_t, std::uint64_t> expected_, made_;  // slots, by size
  std::uint64_t used_bytes_ = 0, made_bytes_ = 0;
  std::uint64_t making_ = 0, ready_ns_ = 0;  // the size of the slot that is being made; 0: none
  std::uint64_t awaited_ = 0;
  std::deque<InFlight> in_flight_[3];  // in, out, compared
  std::uint64_t wrong_loads_ = 0;
};

}  // namespace vmem::replay
