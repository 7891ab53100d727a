#include "trace/steady.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace vmem::trace {
namespace {

// A shorter one may repeat by chance, as layers do.
constexpr std::size_t kShortestPeriod = 4;
constexpr std::size_t kOneInSoManyMayDiffer = 50;

struct Launched {
  std::uint64_t at_ns = 0;
  std::uint32_t what = 0;
  std::ptrdiff_t named = 0;  // blocks, without slabs and without those that only a pointer table leads to
  bool like(const Launched& other) const { return what == other.what && named == other.named; }
};

bool repeats(std::span<const Launched> launches, std::size_t period, std::size_t last) {
  std::size_t differ = 0;
  for (std::size_t i = launches.size() - last; i < launches.size(); ++i) {
    if (launches[i].like(launches[i - period])) continue;
    if (++differ > last / kOneInSoManyMayDiffer) return false;
  }
  return true;
}

std::optional<std::size_t> period_of(std::span<const Launched> launches) {
  const std::size_t third = launches.size() / 3;
  for (std::size_t period = kShortestPeriod; period * 2 <= launches.size(); ++period) {
    const std::size_t last = std::max(third, period);
    if (last + period <= launches.size() && repeats(launches, period, last)) return period;
  }
  return std::nullopt;
}

// Which slab a small allocation lies in differs from period to period.
std::vector<Launched> launches_of(const Trace& trace) {
  std::unordered_set<Block> slabs;
  std::vector<Launched> launches;
  for (const Event& event : trace.events) {
    if (const auto* begins = std::get_if<BlockBegins>(&event.body); begins && begins->kind == BlockKind::slab)
      slabs.insert(begins->block);
    const auto* launch = std::get_if<Launch>(&event.body);
    if (launch == nullptr) continue;
    const auto named = std::ranges::count_if(launch->named, [&](const Named& each) {
      return (each.flags & Named::kPossible) == 0 && !slabs.contains(each.block);
    });
    launches.push_back({event.at_ns, launch->what, named});
  }
  return launches;
}

std::uint64_t peak_since(const Trace& trace, std::uint64_t from_ns) {
  std::unordered_map<Block, std::uint64_t> bytes_of;
  std::uint64_t live = 0, peak = 0;
  for (const Event& event : trace.events) {
    if (event.at_ns >= from_ns) peak = std::max(peak, live);
    if (const auto* begins = std::get_if<BlockBegins>(&event.body)) {
      live += bytes_of[begins->block] = begins->bytes;
    } else if (const auto* ends = std::get_if<BlockEnds>(&event.body)) {
      if (const auto found = bytes_of.find(ends->block); found != bytes_of.end()) live -= found->second;
    }
  }
  return std::max(peak, live);
}

}  // namespace

Steady steady_part(const Trace& trace) {
  const std::vector<Launched> launches = launches_of(trace);
  Steady steady;
  if (launches.empty()) return steady;
  const auto period = period_of(launches);
  steady.periods = period ? 2 : 0;
  steady.launches = period ? *period : launches.size() - launches.size() / 3 * 2;
  steady.from_ns = launches[launches.size() - (period ? 2 * *period : steady.launches)].at_ns;
  steady.peak_bytes = peak_since(trace, steady.from_ns);
  return steady;
}

std::uint64_t peak_bytes(const Trace& trace) { return peak_since(trace, 0); }

}  // namespace vmem::trace
