// The devices: their HBM, in frames, and what the mover counts for each of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <ranges>
#include <utility>
#include <vector>

#include "migration/core.hpp"
#include "migration/page/held_up_calls.hpp"
#include "tiers/frame_pool.hpp"

namespace vmem::migration {

struct Device {
  Device(int number, const MoverDevice& device, tiers::FramePool::Config pool)
      : index(number), config(device), hbm(std::move(pool)) {}

  const int index;  // in MoverConfig::devices
  const MoverDevice config;
  tiers::FramePool hbm;
  std::uint64_t loads_bytes = 0;     // in flight into its frames
  std::uint64_t stores_bytes = 0;    // in flight out of its frames
  std::uint64_t arriving_bytes = 0;  // of frames with a direct read in flight, not yet a page's
  std::uint64_t pinned_bytes = 0;    // by advice, kept, and pages of small allocations
  std::uint64_t committed_bytes = 0;
  // Of these, copied by the device's engines from and to host memory.
  std::uint64_t host_loads_bytes = 0, host_stores_bytes = 0;
  HeldUpCalls held_up_calls;
  std::deque<PageId> planned;          // the policy's prefetches that have not started
  std::uint64_t leaving_tried_us = 0;  // time of the last attempt to evict ahead
  bool leaving_waits = false;          // that attempt found busy pages

  // The counter of such a copy: host_loads_bytes or host_stores_bytes. Null: no engine of the
  // device copies host memory for it.
  std::uint64_t* host_copies(std::uint8_t near, tiers::Direction direction, bool if_changed) {
    if (near != 0 || if_changed) return nullptr;
    return direction == tiers::Direction::load ? &host_loads_bytes : &host_stores_bytes;
  }
};

class Devices {
 public:
  explicit Devices(const MoverConfig& config);

  Device& operator[](int index) { return *devices_[std::size_t(index)]; }
  const Device& operator[](int index) const { return *devices_[std::size_t(index)]; }
  Device& of(const Region& region) { return (*this)[region.device]; }
  const Device& of(const Region& region) const { return (*this)[region.device]; }
  int count() const { return int(devices_.size()); }
  auto all() {
    return std::views::transform(devices_, [](const auto& each) -> Device& { return *each; });
  }
  auto all() const {
    return std::views::transform(devices_, [](const auto& each) -> const Device& { return *each; });
  }
  // The end of the mover: devices with direct reads in flight keep their frames until the process
  // ends, because the reads may still write to them.
  void keep_awaited_frames();

 private:
  std::vector<std::unique_ptr<Device>> devices_;  // by index
};

}  // namespace vmem::migration
