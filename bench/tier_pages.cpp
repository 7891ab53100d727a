#include "bench/tier_pages.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>

#include "base/sizes.hpp"
#include "tiers/abilities.hpp"

namespace vmem::bench {
namespace {

// As in the mover: at least this much in flight, and at least the tier's busy_pages.
constexpr std::uint64_t kUnderWayBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kAlignment = std::uint64_t{2} << 20;
constexpr int kWiped = 0xa5;

}  // namespace

Result<PageMemory> PageMemory::create(std::uint64_t page_bytes, std::uint64_t count) {
  VMEM_ASSIGN(RequestMemory memory, in_large_pages(page_bytes * count));
  return PageMemory(std::move(memory), page_bytes, count);
}

Result<PageMemory> PageMemory::pinned(const Gpu& gpu, std::uint64_t page_bytes, std::uint64_t count) {
  VMEM_ASSIGN(RequestMemory memory, as_slots(gpu, page_bytes * count));
  return PageMemory(std::move(memory), page_bytes, count);
}

void PageMemory::fill(std::uint64_t seed) const {
  std::mt19937_64 random(seed);
  for (std::uint64_t i = 0; i < count_; ++i) {
    const std::span<std::byte> bytes = page(i);
    for (std::size_t at = 0; at < bytes.size(); at += 8) {
      const std::uint64_t word = random();
      std::memcpy(bytes.data() + at, &word, 8);
    }
  }
}

void PageMemory::wipe() const { std::memset(memory_.get(), kWiped, bytes()); }

std::string difference(const PageMemory& from, const PageMemory& to) {
  for (std::uint64_t i = 0; i < from.count(); ++i) {
    if (std::memcmp(from.page(i).data(), to.page(i).data(), from.page_bytes()) != 0)
      return fmt::format("page {} came back different", i);
  }
  return {};
}

void TierPages::note_ready() {
  const std::lock_guard lock(mutex_);
  ++ready_;
  changed_.notify_all();
}

std::uint64_t TierPages::ready() const {
  const std::lock_guard lock(mutex_);
  return ready_;
}

void TierPages::wait_beyond(std::uint64_t seen) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ready_ != seen; });
}

Status TierPages::take_slots(tiers::Tier& tier, std::uint64_t page_bytes, std::uint64_t pages, const char* option) {
  tier_ = &tier;
  if (tiers::GrowingTier* const growing = tiers::Abilities(&tier).growing) {
    std::uint64_t seen = ready();
    const std::uint64_t ticket = growing->need(pages * page_bytes);
    for (; !growing->was_answered(ticket); seen = ready()) wait_beyond(seen);
  }
  while (slots_.size() < pages) {
    const std::uint64_t seen = ready();
    VMEM_ASSIGN(const tiers::SlotGrant grant, tier.allocate(page_bytes));
    if (grant.grant == tiers::Grant::granted) {
      slots_.push_back(grant.slot);
    } else if (grant.grant == tiers::Grant::full) {
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("{} pages of {} do not fit into {}; give it more", pages,
                                                         format_bytes(page_bytes), option));
    } else {
      wait_beyond(seen);
    }
  }
  return {};
}

Result<double> TierPages::store(const PageMemory& from) {
  ++version_;
  return move(tiers::Direction::store, from);
}

Result<double> TierPages::load(const PageMemory& to) { return move(tiers::Direction::load, to); }

Status TierPages::submit(tiers::Direction direction, const PageMemory& memory, std::uint64_t page) {
  tiers::Transfer transfer;
  transfer.page.granule = std::uint32_t(page);
  transfer.version = version_;
  transfer.slot = slots_[page];
  transfer.host = memory.page(page).data();
  transfer.bytes = memory.page_bytes();
  transfer.direction = direction;
  return tier_->submit({&transfer, 1});
}

Result<std::uint64_t> TierPages::take_ended() {
  std::vector<tiers::Completion> completions;
  VMEM_TRY(tier_->poll(completions));
  for (const tiers::Completion& each : completions) {
    if (each.outcome == tiers::Outcome::done) continue;
    tier_->finish();  // the memory is the caller's again
    return std::unexpected(each.error);
  }
  return completions.size();
}

Result<double> TierPages::move(tiers::Direction direction, const PageMemory& memory) {
  const std::uint64_t most = std::max<std::uint64_t>(tier_->info().busy_pages, kUnderWayBytes / memory.page_bytes());
  std::uint64_t sent = 0, done = 0;
  const Stopwatch watch;
  while (done < memory.count()) {
    const std::uint64_t seen = ready();
    for (; sent < memory.count() && sent - done < most; ++sent) VMEM_TRY(submit(direction, memory, sent));
    VMEM_ASSIGN(const std::uint64_t ended, take_ended());
    done += ended;
    if (ended == 0) wait_beyond(seen);
  }
  return static_cast<double>(memory.bytes()) / watch.nanoseconds();
}

Status TierPages::load_one(const PageMemory& to, std::uint64_t page) {
  std::uint64_t seen = ready();
  VMEM_TRY(submit(tiers::Direction::load, to, page));
  for (;; seen = ready()) {
    VMEM_ASSIGN(const std::uint64_t ended, take_ended());
    if (ended != 0) return {};
    wait_beyond(seen);
  }
}

}  // namespace vmem::bench
