#include "trace/bound.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <queue>
#include <random>
#include <tuple>
#include <vector>

#include "trace/schedule.hpp"

namespace vmem::trace {
namespace {

// Small programs: items of one byte, launches of one nanosecond, links of one byte a nanosecond.
// So everything takes one tick, and every schedule can be tried.
constexpr Machine machine_of(std::uint64_t hbm) {
  return {.hbm_bytes = hbm, .in_bytes_per_s = 1e9, .out_bytes_per_s = 1e9};
}

using Contents = Program::Contents;
using Set = std::uint32_t;  // of items

Program make_program(const std::vector<std::vector<std::uint32_t>>& launches, Set old) {
  Program program;
  for (const auto& launch : launches) {
    const auto at = Position(program.launches.size());
    program.epochs.push_back({at, at + 1, 1});
    program.launches.push_back({1, std::uint32_t(program.uses.size()), std::uint32_t(launch.size())});
    for (const std::uint32_t item : launch) {
      while (program.items.size() <= item)
        program.items.push_back(
            {.bytes = 1, .contents = (old >> program.items.size() & 1) != 0 ? Contents::before : Contents::made});
      Program::Item& of = program.items[item];
      of.first = std::min(of.first, at);
      of.last = at;
      program.uses.push_back({item, false});
    }
  }
  return program;
}

Set needed(const Program& program, Position at) {
  Set set = 0;
  const auto& launch = program.launches[at];
  for (std::uint32_t i = 0; i < launch.uses; ++i) set |= 1u << program.uses[launch.first_use + i].item;
  return set;
}
Set old_items(const Program& program) {
  Set set = 0;
  for (std::size_t i = 0; i < program.items.size(); ++i) set |= Set(program.items[i].contents == Contents::before) << i;
  return set;
}
bool used_from(const Program& program, std::uint32_t item, Position at) { return program.items[item].last >= at; }

// Least bytes in, over all ways to keep and drop; `out`: least bytes out instead. Before launch
// `at` HBM holds `in_hbm`, and `copied` have a copy outside.
class AllWays {
 public:
  AllWays(const Program& program, std::uint64_t hbm, bool out) : program_(program), hbm_(int(hbm)), out_(out) {}

  std::uint64_t least() {
    const Set old = old_items(program_);
    std::uint64_t best = ~std::uint64_t{0};
    for (Set start = old;; start = (start - 1) & old) {
      if (std::popcount(start) <= hbm_) best = std::min(best, from(0, start, old));
      if (start == 0) return best;
    }
  }

 private:
  std::uint64_t from(Position at, Set in_hbm, Set copied) {
    if (at == program_.launches.size()) return 0;
    const auto key = std::tuple(at, in_hbm, copied);
    if (const auto known = known_.find(key); known != known_.end()) return known->second;
    std::uint64_t best = ~std::uint64_t{0} / 2;
    const Set wanted = needed(program_, at);
    Set made = 0;
    for (std::uint32_t i = 0; i < program_.items.size(); ++i)
      made |= Set(program_.items[i].contents == Contents::made && program_.items[i].first == at) << i;
    for (Set kept = in_hbm;; kept = (kept - 1) & in_hbm) {  // any subset stays
      const Set holds = kept | wanted;
      if (std::popcount(holds) <= hbm_) {
        std::uint64_t ins = std::uint64_t(std::popcount(wanted & ~kept & ~made)), outs = 0;
        Set copies = copied;
        bool possible = true;
        for (std::uint32_t i = 0; i < program_.items.size(); ++i) {
          const Set item = 1u << i;
          if ((wanted & ~kept & ~made & item) != 0 && (in_hbm & item) == 0 && (copied & item) == 0) possible = false;
          const bool dropped = (in_hbm & ~kept & item) != 0;
          if (!dropped || (copies & item) != 0 || !used_from(program_, i, at)) continue;
          ++outs;
          copies |= item;
        }
        if (possible) best = std::min(best, (out_ ? outs : ins) + from(at + 1, holds, copies));
      }
      if (kept == 0) break;
    }
    return known_[key] = best;
  }

  const Program& program_;
  const int hbm_;
  const bool out_;
  std::map<std::tuple<Position, Set, Set>, std::uint64_t> known_;
};

// Least ticks, over all schedules.
std::uint64_t least_ticks(const Program& program, std::uint64_t hbm) {
  using State = std::tuple<Position, Set, Set>;  // launches done, in HBM, copied
  const auto room = int(hbm);
  const Set old = old_items(program);
  std::map<State, std::uint64_t> seen;
  std::queue<State> next;
  const auto reach = [&](const State& state, std::uint64_t ticks) {
    if (seen.try_emplace(state, ticks).second) next.push(state);
  };
  for (Set start = old;; start = (start - 1) & old) {
    if (std::popcount(start) <= room) reach({0, start, old}, 0);
    if (start == 0) break;
  }
  while (!next.empty()) {
    const State state = next.front();
    next.pop();
    const auto [at, before, copied] = state;
    const std::uint64_t ticks = seen[state];
    if (at == program.launches.size()) return ticks;
    // What has a copy, or is not used again, may be dropped first.
    Set droppable = 0;
    for (std::uint32_t i = 0; i < program.items.size(); ++i)
      droppable |= Set((copied >> i & 1) != 0 || !used_from(program, i, at)) << i;
    droppable &= before;
    for (Set dropped = droppable;; dropped = (dropped - 1) & droppable) {
      const Set in_hbm = before & ~dropped;
      for (const bool launches : {false, true}) {
        const Set wanted = launches ? needed(program, at) : 0;
        Set made = 0;
        for (std::uint32_t i = 0; i < program.items.size(); ++i)
          made |= Set(launches && program.items[i].contents == Contents::made && program.items[i].first == at) << i;
        if ((wanted & ~made & ~in_hbm) != 0) continue;
        for (int in = -1; in < int(program.items.size()); ++in) {
          const Set incoming = in < 0 ? 0 : 1u << in;
          if ((incoming & (in_hbm | ~copied)) != 0) continue;
          if (std::popcount(in_hbm | made | incoming) > room) continue;
          for (int out = -1; out < int(program.items.size()); ++out) {
            const Set outgoing = out < 0 ? 0 : 1u << out;
            if ((outgoing & (~in_hbm | copied)) != 0) continue;
            reach({at + (launches ? 1 : 0), in_hbm | made | incoming, copied | outgoing}, ticks + 1);
          }
        }
      }
      if (dropped == 0) break;
    }
  }
  ADD_FAILURE() << "no schedule";
  return 0;
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : random_(seed) {}
  std::uint32_t below(std::uint32_t limit) { return std::uint32_t(random_() % limit); }
  Program program(std::uint32_t items, std::uint32_t launches, std::uint32_t most_named) {
    std::vector<std::vector<std::uint32_t>> all(launches);
    for (auto& launch : all) {
      for (std::uint32_t i = 0; i <= below(most_named); ++i) {
        const std::uint32_t item = below(items);
        if (std::ranges::find(launch, item) == launch.end()) launch.push_back(item);
      }
    }
    return make_program(all, below(1u << items));
  }

 private:
  std::mt19937_64 random_;
};

class SmallPrograms : public ::testing::Test {
 protected:
  SmallPrograms()
      : seed_(std::random_device{}()), random(seed_), trace_(__FILE__, __LINE__, "seed " + std::to_string(seed_)) {}

 private:
  const std::uint64_t seed_;

 protected:
  Random random;

 private:
  ::testing::ScopedTrace trace_;
};

TEST_F(SmallPrograms, LeastBytesInAreWhatTheBestOfAllWaysMoves) {
  for (int i = 0; i < 300; ++i) {
    const Program program = random.program(6, 9, 3);
    for (std::uint64_t hbm = program.largest_launch_bytes(); hbm <= 5; ++hbm) {
      const auto all = Position(program.launches.size());
      ASSERT_EQ(least_moved(program, 0, all, hbm).in_bytes, AllWays(program, hbm, false).least()) << "round " << i;
    }
  }
}

TEST_F(SmallPrograms, NoWayMovesFewerBytesOutThanTheBound) {
  std::uint64_t equal = 0, positive = 0;
  for (int i = 0; i < 300; ++i) {
    const Program program = random.program(6, 9, 3);
    for (std::uint64_t hbm = program.largest_launch_bytes(); hbm <= 5; ++hbm) {
      const auto all = Position(program.launches.size());
      const std::uint64_t bound = least_moved(program, 0, all, hbm).out_bytes,
                          least = AllWays(program, hbm, true).least();
      ASSERT_LE(bound, least) << "round " << i;
      positive += least != 0 ? 1 : 0;
      equal += least != 0 && bound == least ? 1 : 0;
    }
  }
  EXPECT_GT(equal, positive / 3) << "of " << positive << "; a bound of nothing would pass, too";
}

TEST_F(SmallPrograms, NoScheduleIsFasterThanTheBoundNorFasterThanTheBest) {
  std::uint64_t bounds = 0, least = 0, scheduled = 0;
  for (int i = 0; i < 60; ++i) {
    const Program program = random.program(4, 7, 2);
    for (std::uint64_t hbm = program.largest_launch_bytes(); hbm <= 3; ++hbm) {
      const std::uint64_t ticks = least_ticks(program, hbm);
      const Bound lower = bound(program, machine_of(hbm));
      const Schedule upper = schedule(program, machine_of(hbm), Writes::declared);
      ASSERT_LE(lower.time_ns, ticks) << "round " << i << ", HBM " << hbm;
      ASSERT_GE(upper.time_ns, ticks) << "round " << i << ", HBM " << hbm;
      bounds += lower.time_ns;
      least += ticks;
      scheduled += upper.time_ns;
    }
  }
  EXPECT_GT(double(bounds), 0.8 * double(least));
  EXPECT_LT(double(scheduled), 1.3 * double(least));
}

// Four items used in turn, three at a time in HBM: from pass to pass two stay beside the one that
// is needed, as Belady's rule has it.
TEST(LeastMoved, OfACyclicScanIsBeladys) {
  std::vector<std::vector<std::uint32_t>> launches;
  for (std::uint32_t i = 0; i < 40; ++i) launches.push_back({i % 4});
  const Program program = make_program(launches, 0b1111);
  // With room for three, one fetch in three uses.
  EXPECT_EQ(least_moved(program, 0, 40, 3).in_bytes, AllWays(program, 3, false).least());
  EXPECT_EQ(least_moved(program, 0, 40, 4).in_bytes, 0u);
}

// A pass that makes eight items, and one that uses them backwards: with room for four, four go out
// and come back.
TEST(BoundOfPhases, OfAForwardAndABackwardPassIsOneDirectionAfterTheOther) {
  std::vector<std::vector<std::uint32_t>> launches;
  for (std::uint32_t i = 0; i < 8; ++i) launches.push_back({i});
  for (std::uint32_t i = 8; i-- > 0;) launches.push_back({i});
  const Program program = make_program(launches, 0);
  const Moved moved = least_moved(program, 0, 16, 4);
  EXPECT_EQ(moved.out_bytes, 4u);
  EXPECT_EQ(moved.in_bytes, 4u);
  Machine machine = machine_of(4);
  machine.in_bytes_per_s = machine.out_bytes_per_s = 1e8;  // ten ticks an item
  const Bound lower = bound(program, machine);
  EXPECT_GE(lower.time_ns, 80u) << "out in the first half, in in the second";
  EXPECT_GE(schedule(program, machine, Writes::declared).time_ns, lower.time_ns);
}

TEST(ScheduleOfWrites, MovesMoreOutIfAllUsesWrite) {
  std::vector<std::vector<std::uint32_t>> launches;
  for (std::uint32_t i = 0; i < 40; ++i) launches.push_back({i % 4});
  const Program program = make_program(launches, 0b1111);
  EXPECT_EQ(schedule(program, machine_of(3), Writes::declared).moved.out_bytes, 0u);
  EXPECT_GT(schedule(program, machine_of(3), Writes::all).moved.out_bytes, 5u);
}

}  // namespace
}  // namespace vmem::trace
