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
constexpr double kMostDiffer = 0.02;
// A longer period is preferred if so much less differs.
constexpr double kBetter = 0.01;
// Comparisons: a trace without periods is not searched for ever.
constexpr std::uint64_t kMostWork = std::uint64_t{1} << 28;

struct Launched {
  std::uint64_t at_ns = 0;
  std::uint32_t what = 0;
  std::ptrdiff_t named = 0;  // blocks, without slabs and what only a pointer table leads to
  bool like(const Launched& other) const { return what == other.what && named == other.named; }
};

// Finds the period: of those at which at most one launch in so many differs, the shortest that is
// about as good as the best. Layers repeat, too, but not across the ends of steps.
class PeriodSearch {
 public:
  explicit PeriodSearch(std::span<const Launched> launches) : launches_(launches) {}

  std::optional<std::size_t> find() {
    const std::size_t size = launches_.size();
    for (std::size_t period = kShortestPeriod; period * 2 <= size && work_ < kMostWork; ++period) {
      const std::size_t last = std::max(size / 3, period);
      if (last + period <= size && ends_alike(period)) try_period(period, last);
      if (best_ && best_->rate == 0) break;
    }
    return best_ ? std::optional(best_->period) : std::nullopt;
  }

 private:
  struct Found {
    std::size_t period;
    double rate;  // of launches that differ
  };
  // Few of the many that are not periods get past this.
  bool ends_alike(std::size_t period) {
    const std::size_t looks = std::min(kLooks, launches_.size() - period);
    std::size_t alike = 0;
    for (std::size_t i = 1; i <= looks; ++i) alike += like_before(launches_.size() - i, period) ? 1 : 0;
    return alike + 1 >= looks;
  }
  void try_period(std::size_t period, std::size_t last) {
    const double most = best_ ? best_->rate - kBetter : kMostDiffer;
    std::size_t differ = 0;
    for (std::size_t i = launches_.size() - last; i < launches_.size(); ++i) {
      if (like_before(i, period)) continue;
      if (double(++differ) > most * double(last)) return;
    }
    best_ = {period, double(differ) / double(last)};
  }
  bool like_before(std::size_t i, std::size_t period) {
    ++work_;
    return launches_[i].like(launches_[i - period]);
  }

  static constexpr std::size_t kLooks = 8;
  const std::span<const Launched> launches_;
  std::optional<Found> best_;
  std::uint64_t work_ = 0;
};

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

std::uint64_t peak_since(const Trace& trace, std::uint64_t from_ns, bool slabs_only = false) {
  std::unordered_map<Block, std::uint64_t> bytes_of;
  std::uint64_t live = 0, peak = 0;
  for (const Event& event : trace.events) {
    if (event.at_ns >= from_ns) peak = std::max(peak, live);
    if (const auto* begins = std::get_if<BlockBegins>(&event.body)) {
      if (slabs_only && begins->kind != BlockKind::slab) continue;
      if (!bytes_of.try_emplace(begins->block, begins->bytes).second) continue;  // no trace of ours
      live += begins->bytes;
    } else if (const auto* ends = std::get_if<BlockEnds>(&event.body)) {
      const auto found = bytes_of.find(ends->block);
      if (found == bytes_of.end()) continue;
      live -= found->second;
      bytes_of.erase(found);
    }
  }
  return std::max(peak, live);
}

}  // namespace

Steady steady_part(const Trace& trace) {
  const std::vector<Launched> launches = launches_of(trace);
  Steady steady;
  if (launches.empty()) return steady;
  const auto period = PeriodSearch(launches).find();
  steady.periods = period ? 2 : 0;
  steady.launches = period ? *period : launches.size() - launches.size() / 3 * 2;
  steady.from_ns = launches[launches.size() - (period ? 2 * *period : steady.launches)].at_ns;
  steady.peak_bytes = peak_since(trace, steady.from_ns);
  return steady;
}

std::uint64_t peak_bytes(const Trace& trace) { return peak_since(trace, 0); }
std::uint64_t peak_slab_bytes(const Trace& trace) { return peak_since(trace, 0, true); }

}  // namespace vmem::trace
