#include "rdma/lending/remote_tier/lease_sizes.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "pagetable/types.hpp"

namespace vmem::rdma {
namespace {

using pagetable::kGranuleBytes;
using wire::Medium;

constexpr std::uint64_t kMostStepBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kStepsOfAll = 32;

std::uint64_t step_of(std::uint64_t there) {
  return std::clamp(there / kStepsOfAll / kGranuleBytes * kGranuleBytes, kGranuleBytes, kMostStepBytes);
}

std::uint64_t rounded(std::uint64_t share, std::uint64_t there) {
  const std::uint64_t step = step_of(there);
  return std::min(there, (share + step - 1) / step * step);
}

// Equal shares of `bytes`; who has less than its share gives all.
std::vector<std::uint64_t> equal_shares(std::span<const std::uint64_t> there, std::uint64_t bytes) {
  std::vector<std::size_t> order(there.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return there[i]; });
  std::vector<std::uint64_t> shares(there.size());
  for (std::size_t done = 0; done < order.size(); ++done) {
    const std::uint64_t left = order.size() - done;
    std::uint64_t& share = shares[order[done]];
    share = std::min(there[order[done]], bytes / left + (bytes % left != 0 ? 1 : 0));
    bytes -= std::min(bytes, share);
  }
  return shares;
}

std::uint64_t there(const CopyPlacer::Lendable& lender, Medium medium) {
  return lender.usable[medium] + lender.obtainable[medium];
}

// Of these lenders, media of lower levels first.
void fill(std::span<const CopyPlacer::Lendable> lenders, std::uint64_t bytes, std::span<wire::MediumBytes> wanted) {
  std::set<std::uint32_t> levels;
  for (const auto& each : lenders) levels.insert(each.levels.begin(), each.levels.end());
  for (const std::uint32_t level : levels) {
    std::vector<std::pair<std::size_t, Medium>> parts;
    std::vector<std::uint64_t> all;
    for (std::size_t i = 0; i < lenders.size(); ++i) {
      for (const Medium medium : wire::kMedia) {
        if (lenders[i].levels[static_cast<std::size_t>(medium)] != level) continue;
        parts.emplace_back(i, medium);
        all.push_back(there(lenders[i], medium));
      }
    }
    const auto shares = equal_shares(all, bytes);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      wanted[parts[i].first][parts[i].second] = rounded(shares[i], all[i]);
      bytes -= std::min(bytes, shares[i]);
    }
  }
}

}  // namespace

std::uint64_t with_slack(std::uint64_t need_bytes) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max() / 4;
  return std::min(need_bytes, kMost) + std::min(need_bytes, kMost) / 8;
}

std::vector<wire::MediumBytes> lease_sizes(std::span<const CopyPlacer::Lendable> lenders, std::uint64_t bytes,
                                           std::uint32_t replicas) {
  std::vector<wire::MediumBytes> wanted(lenders.size());
  if (replicas == 1) {
    fill(lenders, bytes, wanted);
    return wanted;
  }
  std::vector<std::uint64_t> all;
  for (const auto& each : lenders) {
    std::uint64_t& sum = all.emplace_back(0);
    for (const Medium medium : wire::kMedia) sum += there(each, medium);
  }
  auto shares = equal_shares(all, lenders.size() == 1 ? bytes : bytes * replicas);
  // What the others cannot match holds no second copies.
  if (lenders.size() > 1) {
    const auto largest = std::ranges::max_element(shares);
    *largest = std::min(*largest, std::accumulate(shares.begin(), shares.end(), std::uint64_t{0}) - *largest);
  }
  for (std::size_t i = 0; i < lenders.size(); ++i)
    fill(lenders.subspan(i, 1), shares[i], std::span(wanted).subspan(i, 1));
  return wanted;
}

bool is_surplus(std::uint64_t usable, std::uint64_t wanted) {
  return usable > wanted && usable - wanted > std::max(wanted / 4, kGranuleBytes);
}

}  // namespace vmem::rdma
