#include "trace/bound.hpp"

#include <algorithm>
#include <functional>
#include <queue>
#include <span>
#include <utility>

namespace vmem::trace {

using Contents = Program::Contents;

namespace {

// A time during which some bytes could stay in HBM, so that they need not move at its end.
struct Stay {
  Position end = 0;  // needed again then, or at the last time
  std::uint64_t bytes = 0;
  std::uint32_t item = 0;
  bool operator<(const Stay& other) const { return end < other.end; }
};

// Sweeps over the launches with the stays that have begun and not ended. Where their bytes exceed
// the room, the stay that ends last is shortened. No choice drops fewer bytes: of all open stays,
// the one that ends last overlaps every later launch that any of the others overlaps.
class Sweep {
 public:
  void begin(const Stay& stay) {
    if (stay.bytes == 0) return;
    open_.push(stay);
    bytes_ += stay.bytes;
  }
  void end(std::uint64_t bytes) { bytes_ -= bytes; }
  // `gave_way(stay, bytes)`: that many bytes of the stay do not stay.
  template <class GaveWay>
  void fit(std::uint64_t room, GaveWay&& gave_way) {
    while (bytes_ > room) {
      Stay last = open_.top();
      open_.pop();
      const std::uint64_t bytes = std::min(last.bytes, bytes_ - room);
      bytes_ -= bytes;
      last.bytes -= bytes;
      gave_way(last, bytes);
      if (last.bytes != 0) open_.push(last);
    }
  }

 private:
  std::priority_queue<Stay> open_;
  std::uint64_t bytes_ = 0;
};

// Bytes that these launches use and that existed before: each may stay from the begin until then.
std::vector<Stay> stays_from_before(const Program& program, Position first, Position end) {
  std::vector<Stay> stays;
  std::vector<bool> seen(program.items.size(), false);
  for (Position at = first; at < end; ++at) {
    const auto& launch = program.launches[at];
    for (std::uint32_t i = launch.first_use; i < launch.first_use + launch.uses; ++i) {
      const std::uint32_t item = program.uses[i].item;
      if (seen[item]) continue;
      seen[item] = true;
      const auto& of = program.items[item];
      if (of.contents == Contents::before || of.first < first) stays.push_back({at, of.bytes, item});
    }
  }
  return stays;
}

// Between two uses of an item its bytes stay, or come in again.
std::uint64_t least_in(const Program& program, std::span<const Position> next, Position first, Position end,
                       std::uint64_t hbm_bytes) {
  std::vector<std::uint64_t> staying(program.items.size(), 0);
  std::uint64_t in_bytes = 0;
  Sweep sweep;
  const auto stay = [&](const Stay& each) {
    staying[each.item] = each.bytes;
    sweep.begin(each);
  };
  const auto gave_way = [&](const Stay& each, std::uint64_t bytes) {
    staying[each.item] -= bytes;
    in_bytes += bytes;
  };
  // Before the first launch HBM holds what is best.
  std::ranges::for_each(stays_from_before(program, first, end), stay);
  sweep.fit(hbm_bytes, gave_way);
  for (Position at = first; at < end; ++at) {
    const auto& launch = program.launches[at];
    for (std::uint32_t i = launch.first_use; i < launch.first_use + launch.uses; ++i)
      sweep.end(std::exchange(staying[program.uses[i].item], 0));  // it is needed now
    sweep.fit(hbm_bytes - std::min(hbm_bytes, program.needed_bytes(launch)), gave_way);
    for (std::uint32_t i = launch.first_use; i < launch.first_use + launch.uses; ++i) {
      const std::uint32_t item = program.uses[i].item;
      if (next[i] < end) stay({next[i], program.items[item].bytes, item});
    }
  }
  return in_bytes;
}

// Bytes made in these launches either stay from their first use to their last, or go out once. At
// each launch they share HBM with the earlier contents that it needs.
std::uint64_t least_out(const Program& program, Position first, Position end, std::uint64_t hbm_bytes) {
  using End = std::pair<Position, std::uint32_t>;  // last use, item
  std::priority_queue<End, std::vector<End>, std::greater<>> ends;
  std::vector<std::uint64_t> staying(program.items.size(), 0);
  std::uint64_t out_bytes = 0;
  Sweep sweep;
  for (Position at = first; at < end; ++at) {
    const auto& launch = program.launches[at];
    std::uint64_t others = 0;
    for (std::uint32_t i = launch.first_use; i < launch.first_use + launch.uses; ++i) {
      const std::uint32_t item = program.uses[i].item;
      const auto& of = program.items[item];
      if (of.contents != Contents::made || of.first < first) others += of.bytes;
      if (of.contents != Contents::made || of.first != at) continue;
      // Used again behind these launches, it has to be somewhere until then.
      const Position last = std::min(of.last, end);
      staying[item] = of.bytes;
      sweep.begin({last, of.bytes, item});
      ends.emplace(last, item);
    }
    sweep.fit(hbm_bytes - std::min(hbm_bytes, others), [&](const Stay& stay, std::uint64_t bytes) {
      staying[stay.item] -= bytes;
      out_bytes += bytes;
    });
    for (; !ends.empty() && ends.top().first == at; ends.pop()) sweep.end(std::exchange(staying[ends.top().second], 0));
  }
  return out_bytes;
}

// Of the epochs whose work is complete when the launch `end` begins.
std::uint64_t compute_ns(const Program& program, Position first, Position end) {
  std::uint64_t sum = 0;
  for (const Program::Epoch& epoch : program.epochs)
    sum += epoch.first >= first && epoch.behind <= end ? epoch.gpu_ns : 0;
  return sum;
}

// Places to divide at, where epochs begin: at equal parts of the uses, which is where bytes are.
std::vector<Position> places(const Program& program, std::uint32_t cuts) {
  std::vector<bool> begins(program.launches.size(), program.epochs.empty());
  for (const Program::Epoch& epoch : program.epochs) begins[epoch.first] = true;
  std::vector<Position> found{0};
  const std::size_t uses = std::max<std::size_t>(program.uses.size(), 1);
  for (Position at = 1; at < program.launches.size(); ++at) {
    const std::size_t part = std::size_t(program.launches[at].first_use) * (cuts + 1) / uses;
    if (begins[at] && part >= found.size() && found.size() <= cuts) found.push_back(at);
  }
  found.push_back(Position(program.launches.size()));
  return found;
}

}  // namespace

Moved least_moved(const Program& program, Position first, Position end, std::uint64_t hbm_bytes) {
  return {least_in(program, program.next_uses(), first, end, hbm_bytes), least_out(program, first, end, hbm_bytes)};
}

std::uint64_t Bound::Phase::least_ns() const { return std::max({compute_ns, in_ns, out_ns}); }

std::uint64_t link_ns(std::uint64_t bytes, double bytes_per_s) {
  return bytes_per_s <= 0 ? 0 : std::uint64_t(double(bytes) / bytes_per_s * 1e9);
}

Bound bound(const Program& program, const Machine& machine, std::uint32_t cuts) {
  const auto all = Position(program.launches.size());
  const std::vector<Position> at = places(program, cuts), next = program.next_uses();
  const auto phase_of = [&](Position first, Position end) {
    const Moved moved{least_in(program, next, first, end, machine.hbm_bytes),
                      least_out(program, first, end, machine.hbm_bytes)};
    return Bound::Phase{.first = first,
                        .end = end,
                        .compute_ns = compute_ns(program, first, end),
                        .in_ns = link_ns(moved.in_bytes, machine.in_bytes_per_s),
                        .out_ns = link_ns(moved.out_bytes, machine.out_bytes_per_s)};
  };
  // best[j]: the largest sum for the launches before at[j].
  std::vector<std::uint64_t> best(at.size(), 0);
  std::vector<std::pair<std::size_t, Bound::Phase>> from(at.size());
  for (std::size_t j = 1; j < at.size(); ++j) {
    for (std::size_t i = 0; i < j; ++i) {
      const Bound::Phase phase = phase_of(at[i], at[j]);
      if (i != 0 && best[i] + phase.least_ns() <= best[j]) continue;
      best[j] = best[i] + phase.least_ns();
      from[j] = {i, phase};
    }
  }
  Bound result{.moved = least_moved(program, 0, all, machine.hbm_bytes),
               .compute_ns = compute_ns(program, 0, all),
               .time_ns = best.back(),
               .phases = {}};
  for (std::size_t j = at.size() - 1; j > 0; j = from[j].first)
    result.phases.insert(result.phases.begin(), from[j].second);
  return result;
}

}  // namespace vmem::trace
