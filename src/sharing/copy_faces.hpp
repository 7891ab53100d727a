// What the mover sees of DiskCopies: the two tiers, and the sources of regions. They take the lock;
// DiskCopies' own functions require it.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sharing/disk_copies.hpp"

namespace vmem::sharing {

class DiskCopies::Source final : public tiers::PageSource {
 public:
  Source(DiskCopies& copies, std::shared_ptr<tiers::PageSource> source) : copies_(copies), source_(std::move(source)) {}
  // Before the slots may be those of another region.
  ~Source() override {
    if (!first_) return;
    const std::lock_guard lock(copies_.mutex_);
    copies_.list_.remove_region(*first_);
  }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  std::string name() const override { return source_->name(); }
  std::optional<tiers::RegionPlace> place() const override { return source_->place(); }
  std::uint64_t head_bytes() const override { return source_->head_bytes(); }
  std::uint64_t bytes() const override { return source_->bytes(); }
  Result<tiers::SlotId> lay_out(std::uint64_t page_bytes, std::uint32_t count) override {
    VMEM_ASSIGN(const tiers::SlotId first, source_->lay_out(page_bytes, count));
    const std::lock_guard lock(copies_.mutex_);
    copies_.list_.add_region(first, count);
    first_ = first;
    return first;
  }

 private:
  DiskCopies& copies_;
  const std::shared_ptr<tiers::PageSource> source_;
  std::optional<tiers::SlotId> first_;
};

class DiskCopies::SourcesFace final : public tiers::Tier, public tiers::QueueingTier {
 public:
  explicit SourcesFace(DiskCopies& copies) : copies_(copies), info_(copies.source_.info()) {
    info_.busy_pages = std::max(info_.busy_pages, copies.disk_.info().busy_pages);
  }
  const tiers::TierInfo& info() const noexcept override { return info_; }
  tiers::TierUsage usage() const override { return copies_.source_.usage(); }
  std::vector<std::uint64_t> places() const override { return copies_.source_.places(); }
  void expect(std::uint64_t page_bytes, std::uint64_t count) override { copies_.source_.expect(page_bytes, count); }
  Result<tiers::SlotGrant> allocate(std::uint64_t page_bytes) override { return copies_.source_.allocate(page_bytes); }
  void release(tiers::SlotId slot) override { copies_.source_.release(slot); }
  std::string where(tiers::SlotId slot) const override { return copies_.source_.where(slot); }
  Status submit(std::span<tiers::Transfer> transfers) override {
    const std::lock_guard lock(copies_.mutex_);
    for (tiers::Transfer& transfer : transfers) transfer.id = 0;
    for (tiers::Transfer& transfer : transfers) {
      const bool load = transfer.direction == tiers::Direction::load && copies_.list_.covers(transfer.slot);
      VMEM_TRY(load ? copies_.submit_load(transfer) : copies_.source_.submit({&transfer, 1}));
    }
    return {};
  }
  Status poll(std::vector<tiers::Completion>& completions) override {
    const std::lock_guard lock(copies_.mutex_);
    const Status disk = copies_.collect_disk();
    const Status source = copies_.collect_source();
    std::ranges::move(std::exchange(copies_.to_sources_, {}), std::back_inserter(completions));
    return source ? disk : source;
  }
  tiers::Finished finish() noexcept override {
    const auto source = copies_.source_.finish(), disk = copies_.finish();
    return source == tiers::Finished::all_ended ? disk : source;
  }
  // Pages with a copy do not wait for nodes.
  std::uint32_t queue(tiers::SlotId slot) const override {
    constexpr std::uint32_t kOfDisks = (1u << 22) - 1;
    const std::lock_guard lock(copies_.mutex_);
    const CopyList::Copy* const copy = copies_.list_.find(slot);
    const bool disks = copy != nullptr && copy->stored && copies_.rule_.prefers_disks();
    return disks ? kOfDisks : copies_.source_abilities_.queue(slot);
  }
  void hurry(std::uint64_t transfer) override {
    const std::lock_guard lock(copies_.mutex_);
    const auto is_this = [&](const auto& each) { return each.second.transfer.id == transfer; };
    const auto found = std::ranges::find_if(copies_.loads_, is_this);
    if (found == copies_.loads_.end()) return copies_.source_abilities_.hurry(transfer);
    found->second.transfer.ahead = false;
    if (found->second.at == Place::nodes) copies_.source_abilities_.hurry(found->first);
  }

 private:
  DiskCopies& copies_;
  tiers::TierInfo info_;
};

class DiskCopies::DisksFace final : public tiers::Tier, public tiers::FrameLoadingTier, public tiers::DegradableTier {
 public:
  explicit DisksFace(DiskCopies& copies) : copies_(copies) {}
  const tiers::TierInfo& info() const noexcept override { return copies_.disk_.info(); }
  // Copies leave when their room is needed, so they count as free.
  tiers::TierUsage usage() const override {
    const std::uint64_t copies = copies_.held_bytes_.load();
    tiers::TierUsage usage = copies_.disk_.usage();
    usage.used_bytes -= std::min(usage.used_bytes, copies);
    return usage;
  }
  std::vector<std::uint64_t> places() const override { return copies_.disk_.places(); }
  void expect(std::uint64_t page_bytes, std::uint64_t count) override { copies_.disk_.expect(page_bytes, count); }
  Result<tiers::SlotGrant> allocate(std::uint64_t page_bytes) override {
    const std::lock_guard lock(copies_.mutex_);
    return copies_.allocate(page_bytes);
  }
  void release(tiers::SlotId slot) override { copies_.disk_.release(slot); }
  std::string where(tiers::SlotId slot) const override { return copies_.disk_.where(slot); }
  Status submit(std::span<tiers::Transfer> transfers) override {
    const std::lock_guard lock(copies_.mutex_);
    return copies_.submit_own(transfers);
  }
  Status poll(std::vector<tiers::Completion>& completions) override {
    const std::lock_guard lock(copies_.mutex_);
    const Status polled = copies_.collect_disk();
    std::ranges::move(std::exchange(copies_.to_disks_, {}), std::back_inserter(completions));
    return polled;
  }
  tiers::Finished finish() noexcept override { return copies_.finish(); }
  bool loads_into_frames(tiers::SlotId slot, int device) const override {
    return copies_.disk_abilities_.loads_into_frames(slot, device);
  }
  bool degraded(tiers::SlotId slot) const override { return copies_.disk_abilities_.degraded(slot); }

 private:
  DiskCopies& copies_;
};

}  // namespace vmem::sharing
