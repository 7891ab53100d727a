#include "migration/flow/committer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "base/memory_reserve.hpp"
#include "base/sizes.hpp"
#include "migration/place/lendable.hpp"

namespace vmem::migration {

std::vector<std::uint64_t> Committer::places_below(Room below) const {
  const tiers::GrowingTier* const growing = core_.abilities.spill.growing;
  if (core_.config.spill == nullptr) return {};
  if (growing != nullptr && below == Room::obtainable) return growing->obtainable_places();
  return core_.config.spill->places();
}

Memories Committer::memories(Room below) const {
  Memories all{.host_bytes = core_.config.backing->usage().budget_bytes};
  all.below = places_below(below);
  for (const PeerTier& each : core_.config.peer_tiers) all.lent_bytes.push_back(lent_for_certain(devices_, each));
  for (const Device& device : devices_.all()) {
    std::uint64_t lenders = 0;
    for (const std::uint8_t lender : device.config.lenders) lenders |= std::uint64_t{1} << lender;
    all.devices.push_back(
        {.hbm_bytes = hbm_in_all(device), .committed_bytes = device.committed_bytes, .lenders = lenders});
  }
  return all;
}

PageSizes Committer::page_sizes() const {
  PageSizes sizes{.in_files = below_.largest_file_page()};
  for (const auto& [bytes, pages] : counts_) {
    if (pages.declared + pages.undeclared != 0) sizes.add(bytes);
  }
  if (sizes.largest == 0) sizes.add(pagetable::kGranuleBytes);
  return sizes;
}

PageSizes Committer::page_sizes_with(std::uint64_t wanted) const {
  PageSizes sizes = page_sizes();
  sizes.wanted = wanted;
  sizes.add(wanted);
  return sizes;
}

std::uint64_t Committer::largest_page() const {
  std::uint64_t largest = 0;
  for (const auto& [page_bytes, pages] : counts_) largest = std::max(largest, page_bytes);
  return largest;
}

Status Committer::commit(Device& device, std::uint64_t bytes, const PageSizes& pages, Growth& growth) {
  const tiers::GrowingTier* const growing = core_.abilities.spill.growing;
  // Before the budget is read: else the answer might come between the two.
  const bool answered = growing == nullptr || !growth.ticket || growing->was_answered(*growth.ticket);
  device.committed_bytes += bytes;  // the memory that others lend depends on it
  growth.waits = false;
  Memories all;
  std::optional<Shortfall> missing;
  const bool had = ran_within_memory([&] {
    all = memories();
    const std::uint64_t needed = growing == nullptr ? 0 : needed_below(all, pages);
    if (needed > need_.told()) {
      (void)need_.tell(needed);
      // Read again: of that, nothing is given back any more.
      all.below = places_below(Room::granted);
    }
    missing = shortfall(all, pages);
    if (!missing) return lending_.balance(device);
    grow(growth, answered, all, needed);
  });
  if (had && !missing) return {};
  device.committed_bytes -= bytes;
  followed_.clear();  // the need was that of this call
  if (!had) throw std::bad_alloc();
  return commit_error(device, bytes, pages, all, *missing);
}

// Once the others have answered, asks again only if they gave something: parts of the budget waste
// some, so that what was granted may still be too little.
void Committer::grow(Growth& growth, bool answered, const Memories& all, std::uint64_t needed) {
  if (core_.abilities.spill.growing == nullptr) return;
  const std::uint64_t below = std::accumulate(all.below.begin(), all.below.end(), std::uint64_t{0});
  growth.waits = !answered || !growth.ticket || below > growth.below_bytes;
  if (!growth.waits) return;
  waiting_need_ = std::max(waiting_need_, needed);
  if (growth.ticket && !answered) return;
  growth.ticket = need_.tell(waiting_need_);
  growth.below_bytes = below;
}

void Committer::follow_need() {
  if (core_.abilities.spill.growing == nullptr) return;
  const std::uint64_t waiting = std::exchange(waiting_need_, 0);
  now_.assign({waiting, need_.lacking(), core_.abilities.spill.growing->changes()});
  for (const Device& device : devices_.all()) {
    now_.push_back(device.committed_bytes);
    now_.push_back(hbm_in_all(device));
  }
  if (now_ == followed_) return;
  const PageSizes pages = page_sizes_with(page_sizes().largest);
  const std::uint64_t needed = std::max(waiting, needed_below(memories(), pages));
  if (std::max(needed, need_.lacking()) != need_.told()) (void)need_.tell(needed);
  std::swap(now_, followed_);
}

Status Committer::commit_transit(Device& device, std::uint64_t page_bytes, const tiers::PageSource& source,
                                 Growth& growth) {
  const std::uint64_t host = core_.config.backing->usage().budget_bytes;
  if (page_bytes > host) {
    return fail(VMEM_ERROR_OUT_OF_MEMORY,
                fmt::format("{} would be read in pages of {}, and host memory has {}; raise --host or lower --page",
                            source.name(), format_bytes(page_bytes), format_bytes(host)));
  }
  PageSizes pages = page_sizes();
  pages.wanted = page_bytes;
  pages.in_files = std::max(pages.in_files, page_bytes);
  auto committed = commit(device, 0, pages, growth);
  if (committed) return {};
  Error error = std::move(committed).error();
  error.message =
      fmt::format("to read {}, pages must have a way through host memory: {}", source.name(), error.message);
  return std::unexpected(std::move(error));
}

Status Committer::commit_error(const Device& device, std::uint64_t bytes, const PageSizes& pages, const Memories& all,
                               const Shortfall& missing) const {
  const std::uint64_t hbm = hbm_in_all(device);
  const bool lent = !all.lent_bytes.empty(), below = core_.config.spill != nullptr;
  const std::uint64_t below_bytes = std::accumulate(all.below.begin(), all.below.end(), std::uint64_t{0});
  const bool nodes = below && core_.config.spill->info().name.contains("remote");
  const tiers::GrowingTier* const growing = core_.abilities.spill.growing;
  const std::string shortage = growing == nullptr ? "" : growing->shortage();
  return fail(
      VMEM_ERROR_OUT_OF_MEMORY,
      fmt::format(
          "{} asked for on device {}, where {} are allocated and HBM can hold {} of {}: {} would have to fit into "
          "{}host memory{}, which can hold {} of {} (pages in transit take the rest); free something, or raise --hbm, "
          "--host{}{}{}",
          format_bytes(bytes), device.config.ordinal, format_bytes(device.committed_bytes),
          format_bytes(usable_hbm_bytes(hbm, pages)), format_bytes(hbm), format_bytes(missing.overflow),
          lent ? fmt::format("what other GPUs lend, {}, and ", format_bytes(missing.lent)) : std::string(),
          below ? fmt::format(" ({}) and {} ({})", format_bytes(all.host_bytes), core_.config.spill->info().name,
                              format_bytes(below_bytes))
                : std::string(),
          format_bytes(missing.host_and_below), format_bytes(all.host_bytes + below_bytes), lent ? ", --peers" : "",
          nodes
              ? ", --borrow or --nvme, or run `vmem daemon` on another node, and name it with --remote if there is no "
                "--cluster"
              : ", --nvme or --remote",
          shortage.empty() ? "" : fmt::format(" (other nodes have no more room: {})", shortage)));
}

// The device's HBM with all of its own lending reclaimed, except what other processes withhold.
std::uint64_t Committer::hbm_in_all(const Device& device) const {
  for (const Loan& out : core_.config.loans) {
    if (out.lender != device.index) continue;
    return device.config.hbm_bytes - std::min(device.config.hbm_bytes, out.held().overdue_bytes);
  }
  const bool lends = std::ranges::any_of(
      core_.config.peer_tiers, [&](const PeerTier& lent) { return lent.lender && *lent.lender == device.index; });
  return lends ? device.config.hbm_bytes : device.hbm.budget_bytes();
}

Committer::Ahead Committer::ahead(std::uint64_t hbm_bytes) const {
  std::uint64_t declared = 0, undeclared = 0;
  for (const auto& [page_bytes, pages] : counts_) {
    declared += page_bytes * pages.declared;
    undeclared += page_bytes * pages.undeclared;
  }
  const auto part = [](std::uint64_t of, std::uint64_t all) { return all == 0 ? 0 : double(of) / double(all); };
  if (const auto bytes = core_.config.backing_ahead_bytes) {
    const double all = part(*bytes, declared + undeclared);
    return {all, all};
  }
  const std::uint64_t half = hbm_bytes / 2;
  return {0, part(std::min(undeclared - std::min(undeclared, half), half), undeclared)};
}

void Committer::expect_first_slots(std::uint64_t page_bytes) {
  const std::uint64_t bytes = core_.config.backing_ahead_bytes.value_or(0);
  if (bytes == 0) return;
  counts_.try_emplace(page_bytes);  // so that what is allocated later changes it
  core_.config.backing->expect(page_bytes, (bytes + page_bytes - 1) / page_bytes);
}

// Once evictions are expected, one slot per declared page, so that clean pages keep their copy.
// Programs that do not call vmem write most of their pages, so their regions get only the slots
// that the overflow needs: creating one blocks the driver while its memory is cleared.
void Committer::expect_slots() {
  constexpr std::uint64_t kGranule = pagetable::kGranuleBytes;
  constexpr PageSizes smallest{.wanted = kGranule, .smallest = kGranule, .largest = kGranule};
  std::uint64_t committed = 0, hbm = 0, lent = 0;
  for (const Device& device : devices_.all()) {
    committed += device.committed_bytes;
    hbm += usable_hbm_bytes(device.hbm.budget_bytes(), smallest);
  }
  for (const PeerTier& each : core_.config.peer_tiers) lent += lent_for_certain(devices_, each);
  const double overflow = committed > hbm ? double(committed - hbm) / double(committed) : 0;
  const Ahead before = ahead(hbm);
  const auto part = [](double of, std::uint64_t pages) { return std::uint64_t(std::ceil(of * double(pages))); };
  for (const auto& [page_bytes, pages] : counts_) {
    const std::uint64_t leaving = overflow == 0 ? 0 : pages.declared + part(overflow, pages.undeclared);
    for (std::size_t near = 1; near < near_.count(); ++near) near_[near].tier->expect(page_bytes, leaving);
    const std::uint64_t slots =
        std::max(leaving, part(before.of_declared, pages.declared) + part(before.of_undeclared, pages.undeclared));
    core_.config.backing->expect(page_bytes, slots - std::min(slots, lent / page_bytes));
  }
}

}  // namespace vmem::migration
