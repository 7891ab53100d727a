// What lies below host memory, in virtual time: a disk, or another node. Its copies come from host
// memory and go there, one after the other in each direction.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "replay/virtual_gpu.hpp"
#include "replay/virtual_host.hpp"
#include "tiers/tier.hpp"

namespace vmem::replay {

class VirtualBelow final : public tiers::Tier {
 public:
  struct Config {
    const VirtualGpu& gpu;  // whose clock counts
    VirtualHost& host;
    std::uint64_t budget_bytes = 0;
    std::uint64_t in_bytes_per_s = 0, out_bytes_per_s = 0;
    Timeline* timeline = nullptr;  // as VirtualGpu's
  };
  explicit VirtualBelow(const Config& config) : config_(config) {}

  // When the next transfer ends; the largest number: none is in flight.
  std::uint64_t next_end_ns() const;
  std::uint64_t busy_ns(tiers::Direction direction) const { return queue(direction).busy_ns; }
  std::uint64_t bytes(tiers::Direction direction) const { return queue(direction).bytes; }

  const tiers::TierInfo& info() const noexcept override { return info_; }
  tiers::TierUsage usage() const override { return {config_.budget_bytes, used_bytes_, 0, used_bytes_}; }
  void expect(std::uint64_t, std::uint64_t) override {}
  Result<tiers::SlotGrant> allocate(std::uint64_t page_bytes) override;
  void release(tiers::SlotId slot) override;
  Status submit(std::span<tiers::Transfer> transfers) override;
  Status poll(std::vector<tiers::Completion>& completions) override;
  tiers::Finished finish() noexcept override { return tiers::Finished::all_ended; }

 private:
  struct Slot {
    std::uint64_t bytes = 0;
    std::vector<std::uint32_t> holds;
  };
  struct InFlight {
    std::uint64_t id, end_ns;
    tiers::SlotId slot;
    std::byte* host;
  };
  struct Queue {
    std::deque<InFlight> in_flight;
    std::uint64_t end_ns = 0, busy_ns = 0, bytes = 0;
  };
  const Queue& queue(tiers::Direction direction) const {
    return direction == tiers::Direction::load ? loads_ : stores_;
  }

  static constexpr tiers::TierInfo info_{.name = "below"};
  const Config config_;
  std::vector<Slot> slots_;
  std::vector<tiers::SlotId> free_;
  std::uint64_t used_bytes_ = 0;
  Queue loads_, stores_;
};

}  // namespace vmem::replay
