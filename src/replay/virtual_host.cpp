#include "replay/virtual_host.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <utility>

namespace vmem::replay {
namespace {

using tiers::Direction;
using tiers::Grant;

gpu::Fingerprint fingerprint_of(const std::vector<std::uint32_t>& contents) {
  const XXH128_hash_t hash = XXH3_128bits(contents.data(), contents.size() * sizeof contents[0]);
  return {hash.low64, hash.high64};
}

// Bytes of the granules whose contents are not the same.
std::uint64_t differing(const std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b) {
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < b.size(); ++i) count += i >= a.size() || a[i] != b[i] ? 1 : 0;
  return count * pagetable::kGranuleBytes;
}

std::uint32_t granules(std::uint64_t bytes) { return std::uint32_t(bytes >> pagetable::kGranuleShift); }

}  // namespace

void Contents::write(std::uint32_t granule, std::uint32_t count) {
  if (versions_.size() < std::size_t(granule) + count) versions_.resize(std::size_t(granule) + count);
  for (std::uint32_t i = granule; i < granule + count; ++i) ++versions_[i];
}

std::vector<std::uint32_t> Contents::of(std::uint32_t granule, std::uint32_t count) const {
  std::vector<std::uint32_t> found(count);
  for (std::uint32_t i = 0; i < count && granule + i < versions_.size(); ++i) found[i] = versions_[granule + i];
  return found;
}

tiers::TierUsage VirtualHost::usage() const {
  return {config_.budget_bytes, used_bytes_, made_bytes_ - used_bytes_, made_bytes_ + making_};
}

// The size of the slot that is made next; 0: none.
std::uint64_t VirtualHost::next_size() const {
  const auto fits = [&](std::uint64_t bytes) { return bytes != 0 && made_bytes_ + bytes <= config_.budget_bytes; };
  if (fits(awaited_)) return awaited_;
  for (const auto& [bytes, count] : expected_) {
    const auto made = made_.find(bytes);
    if ((made == made_.end() ? 0 : made->second) < count && fits(bytes)) return bytes;
  }
  return 0;
}

void VirtualHost::make_slots() {
  const std::uint64_t now_ns = config_.gpu.now_ns();
  for (;;) {
    std::uint64_t begin_ns = now_ns;
    if (making_ != 0) {
      if (ready_ns_ > now_ns) return;
      begin_ns = ready_ns_;
      const auto slot = tiers::SlotId(slots_.size());
      slots_.push_back({.bytes = making_, .holds = {}, .known = false, .used = false});
      free_[making_].push_back(slot);
      ++made_[making_];
      made_bytes_ += making_;
      if (awaited_ == making_) awaited_ = 0;
    }
    making_ = next_size();
    if (making_ == 0) return;
    ready_ns_ = begin_ns + std::uint64_t(double(making_) * 1e9 / double(config_.made_bytes_per_s));
  }
}

Result<tiers::SlotGrant> VirtualHost::allocate(std::uint64_t page_bytes) {
  make_slots();
  if (auto& ready = free_[page_bytes]; !ready.empty()) {
    const tiers::SlotId slot = ready.back();
    ready.pop_back();
    slots_[slot].used = true;
    slots_[slot].known = slots_[slot].open = false;
    used_bytes_ += page_bytes;
    return tiers::SlotGrant{Grant::granted, slot};
  }
  drop_free(page_bytes);
  if (made_bytes_ + making_ + page_bytes > config_.budget_bytes && making_ != page_bytes)
    return tiers::SlotGrant{Grant::full, 0};
  awaited_ = page_bytes;
  make_slots();
  return tiers::SlotGrant{Grant::later, 0};
}

void VirtualHost::drop_free(std::uint64_t bytes) {
  for (auto& [size, slots] : free_) {
    while (size != bytes && !slots.empty() && made_bytes_ + making_ + bytes > config_.budget_bytes) {
      slots.pop_back();
      made_bytes_ -= size;
      --made_[size];
    }
  }
}

void VirtualHost::release(tiers::SlotId slot) {
  slots_[slot].used = false;
  used_bytes_ -= slots_[slot].bytes;
  free_[slots_[slot].bytes].push_back(slot);
}

CUmemGenericAllocationHandle VirtualHost::handle(tiers::SlotId slot) const {
  slots_[slot].known = false;
  slots_[slot].open = true;
  return kFirstAddress + slot;
}

CUdeviceptr VirtualHost::device_address(tiers::SlotId slot, pagetable::Access access) const {
  if (access == pagetable::Access::write) slots_[slot].known = false;
  return kFirstAddress + (std::uint64_t{slot} << kSlotShift);
}

std::optional<gpu::Fingerprint> VirtualHost::fingerprint(tiers::SlotId slot) const {
  if (!slots_[slot].known) return std::nullopt;
  return fingerprint_of(slots_[slot].holds);
}

Status VirtualHost::submit(std::span<tiers::Transfer> transfers) {
  for (tiers::Transfer& transfer : transfers) submit_one(transfer);
  return {};
}

void VirtualHost::submit_one(tiers::Transfer& transfer) {
  VirtualGpu& gpu = config_.gpu;
  const std::vector<std::uint32_t> holds = config_.contents.of(transfer.page.granule, granules(transfer.bytes));
  const auto compare_ns = std::uint64_t(double(transfer.bytes) * 1e9 / double(config_.compared_bytes_per_s)) + 10'000;
  transfer.id = tiers::next_transfer_id();
  const auto enter = [&](int queue, CUevent done, bool changed = false, std::uint64_t copied_bytes = 0) {
    transfer.done = done;
    in_flight_[queue].push_back({transfer.id, done, changed, copied_bytes});
  };
  if (transfer.compare_with) {
    const bool same = gpu::same(fingerprint_of(holds), *transfer.compare_with);
    return enter(2, gpu.beside(compare_ns, transfer.after), !same);
  }
  Slot& slot = slots_[transfer.slot];
  if (transfer.direction == Direction::load) {
    if (std::exchange(slot.open, false)) slot.holds = holds;
    if (slot.holds != holds) ++wrong_loads_;
    slot.known = slot.known || transfer.watch;
    return enter(0, gpu.copy(transfer.device, VirtualGpu::Direction::in, transfer.bytes, transfer.after, config_.far));
  }
  transfer.if_changed = transfer.if_changed && slot.known;
  if (transfer.if_changed && slot.holds == holds) return enter(2, gpu.beside(compare_ns, transfer.after));
  if (!transfer.if_changed) slot.known = false;
  // A granule is the smallest piece here.
  const std::uint64_t copied = transfer.if_changed ? differing(slot.holds, holds) : transfer.bytes;
  slot.open = false;
  slot.holds = holds;
  enter(1, gpu.copy(transfer.device, VirtualGpu::Direction::out, copied, transfer.after, config_.far),
        transfer.if_changed, transfer.if_changed ? copied : 0);
}

Status VirtualHost::poll(std::vector<tiers::Completion>& completions) {
  make_slots();
  for (auto& queue : in_flight_) {
    while (!queue.empty() && config_.gpu.time_of(queue.front().done) <= config_.gpu.now_ns()) {
      const InFlight& ended = queue.front();
      completions.push_back({ended.id, tiers::Outcome::done, {}, ended.changed, ended.copied_bytes});
      config_.gpu.forget(queue.front().done);
      queue.pop_front();
    }
  }
  return {};
}

}  // namespace vmem::replay
