#include "replay/virtual_below.hpp"

#include <algorithm>
#include <limits>

namespace vmem::replay {
namespace {

constexpr std::uint64_t kStartNs = 100'000;  // of a transfer, beside others

}  // namespace

std::uint64_t VirtualBelow::next_end_ns() const {
  std::uint64_t end_ns = std::numeric_limits<std::uint64_t>::max();
  for (const Queue* each : {&loads_, &stores_}) {
    if (!each->in_flight.empty()) end_ns = std::min(end_ns, each->in_flight.front().end_ns);
  }
  return end_ns;
}

Result<tiers::SlotGrant> VirtualBelow::allocate(std::uint64_t page_bytes) {
  if (used_bytes_ + page_bytes > config_.budget_bytes) return tiers::SlotGrant{tiers::Grant::full, 0};
  if (free_.empty()) {
    free_.push_back(tiers::SlotId(slots_.size()));
    slots_.emplace_back();
  }
  const tiers::SlotId slot = free_.back();
  free_.pop_back();
  slots_[slot] = {page_bytes, {}};
  used_bytes_ += page_bytes;
  return tiers::SlotGrant{tiers::Grant::granted, slot};
}

void VirtualBelow::release(tiers::SlotId slot) {
  used_bytes_ -= slots_[slot].bytes;
  free_.push_back(slot);
}

Status VirtualBelow::submit(std::span<tiers::Transfer> transfers) {
  const std::uint64_t now_ns = config_.gpu.now_ns();
  for (tiers::Transfer& transfer : transfers) {
    const bool load = transfer.direction == tiers::Direction::load;
    Queue& queue = load ? loads_ : stores_;
    const std::uint64_t rate = load ? config_.in_bytes_per_s : config_.out_bytes_per_s;
    const auto takes_ns = std::uint64_t(double(transfer.bytes) * 1e9 / double(rate));
    transfer.id = tiers::next_transfer_id();
    transfer.if_changed = false;
    queue.end_ns = std::max(queue.end_ns, now_ns + kStartNs) + takes_ns;
    queue.busy_ns += takes_ns;
    if (config_.timeline != nullptr)
      config_.timeline->push_back(
          {load ? Track::below_in : Track::below_out, 0, queue.end_ns - takes_ns, queue.end_ns});
    queue.bytes += transfer.bytes;
    queue.in_flight.push_back({transfer.id, queue.end_ns, transfer.slot, transfer.host});
    const auto granules = std::uint32_t(transfer.bytes >> pagetable::kGranuleShift);
    if (!load) slots_[transfer.slot].holds = config_.host.contents(transfer.host, transfer.page.granule, granules);
  }
  return {};
}

Status VirtualBelow::poll(std::vector<tiers::Completion>& completions) {
  for (Queue* each : {&loads_, &stores_}) {
    while (!each->in_flight.empty() && each->in_flight.front().end_ns <= config_.gpu.now_ns()) {
      const InFlight& ended = each->in_flight.front();
      if (each == &loads_) config_.host.set_contents(ended.host, slots_[ended.slot].holds);
      completions.push_back({.id = ended.id, .outcome = tiers::Outcome::done, .error = {}});
      each->in_flight.pop_front();
    }
  }
  return {};
}

}  // namespace vmem::replay
