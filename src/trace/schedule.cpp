#include "trace/schedule.hpp"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace vmem::trace {

using Contents = Program::Contents;

namespace {

// Victims whose last use is at least so many launches ago are preferred: their room is free early,
// so that fetches into it overlap with later launches.
constexpr Position kAges[] = {0, 1, 2, 4, 8, 16, 32, 64, 128, 256};

class Simulation {
 public:
  Simulation(const Program& program, const Machine& machine, Writes writes, Position age)
      : program_(program),
        writes_(writes),
        age_(age),
        machine_(machine),
        states_(program.items.size()),
        next_(program.next_uses()),
        free_(machine.hbm_bytes) {
    for (std::size_t item = 0; item < states_.size(); ++item) states_[item].next = program.items[item].first;
  }

  Schedule run() {
    fill();
    for (Position at = 0; at < program_.launches.size(); ++at) step(at);
    result_.time_ns = gpu_ns_;
    return result_;
  }

 private:
  struct State {
    Position next = kNever;
    Position used = 0;           // the last launch that used it, plus one
    std::uint64_t resident = 0;  // bytes
    std::uint64_t used_until_ns = 0, out_until_ns = 0;
    bool dirty = false;
    bool needed = false;  // by the launch that is being placed
  };
  struct Room {
    std::uint64_t from_ns;
    std::uint64_t bytes;
  };

  // Old items that are used first are there at the begin, as in the bound.
  void fill() {
    std::vector<std::uint32_t> old;
    for (std::uint32_t item = 0; item < states_.size(); ++item) {
      if (program_.items[item].contents == Contents::before) old.push_back(item);
    }
    std::ranges::sort(old, {}, [&](std::uint32_t item) { return program_.items[item].first; });
    for (const std::uint32_t item : old) arrive(item, std::min(free_, program_.items[item].bytes));
  }
  void arrive(std::uint32_t item, std::uint64_t bytes) {
    if (bytes == 0) return;
    delist(item);
    states_[item].resident += bytes;
    free_ -= bytes;
    list(item);
  }
  void list(std::uint32_t item) {
    if (states_[item].resident != 0) resident_.insert({states_[item].next, item});
  }
  void delist(std::uint32_t item) { resident_.erase({states_[item].next, item}); }

  void step(Position at) {
    const auto& launch = program_.launches[at];
    std::uint64_t ready_ns = 0;
    for (std::uint32_t i = launch.first_use; i < launch.first_use + launch.uses; ++i)
      states_[program_.uses[i].item].needed = true;
    for (std::uint32_t i = launch.first_use; i < launch.first_use + launch.uses; ++i)
      ready_ns = std::max(ready_ns, bring(at, program_.uses[i].item));
    const std::uint64_t begins_ns = std::max(gpu_ns_, ready_ns);
    result_.waited_ns += begins_ns - gpu_ns_;
    gpu_ns_ = begins_ns + launch.gpu_ns;
    for (std::uint32_t i = launch.first_use; i < launch.first_use + launch.uses; ++i) {
      const Program::Use& use = program_.uses[i];
      State& state = states_[use.item];
      delist(use.item);
      state.next = next_[i];
      state.used = at + 1;
      state.used_until_ns = gpu_ns_;
      state.needed = false;
      const bool makes = at == program_.items[use.item].first && program_.items[use.item].contents == Contents::made;
      state.dirty = state.dirty || makes || use.writes || writes_ == Writes::all;
      if (state.next == kNever) {
        rooms_.push_back({gpu_ns_, state.resident});
        free_ += std::exchange(state.resident, 0);
      }
      list(use.item);
    }
  }

  // The time from which the whole item is there.
  std::uint64_t bring(Position at, std::uint32_t item) {
    const auto& of = program_.items[item];
    const std::uint64_t missing = of.bytes - states_[item].resident;
    if (missing == 0) return 0;
    while (free_ < missing) evict(at, missing - free_);
    const std::uint64_t room_ns = take_room(missing);
    const bool fetches = of.contents != Contents::made || at != of.first;
    std::uint64_t there_ns = room_ns;
    if (fetches) {
      in_ns_ = std::max({in_ns_, room_ns, states_[item].out_until_ns}) + link_ns(missing, machine_.in_bytes_per_s);
      there_ns = in_ns_;
      result_.moved.in_bytes += missing;
    }
    arrive(item, missing);
    return there_ns;
  }
  void evict(Position at, std::uint64_t wanted) {
    const std::uint32_t item = victim(at);
    State& state = states_[item];
    const std::uint64_t bytes = std::min(state.resident, wanted);
    delist(item);
    state.resident -= bytes;
    list(item);
    std::uint64_t room_ns = state.used_until_ns;
    if (state.dirty) {
      out_ns_ = std::max(out_ns_, state.used_until_ns) + link_ns(bytes, machine_.out_bytes_per_s);
      room_ns = state.out_until_ns = out_ns_;
      result_.moved.out_bytes += bytes;
      if (state.resident == 0) state.dirty = false;
    }
    rooms_.push_back({room_ns, bytes});
    free_ += bytes;
  }

  // Farthest next use among those of the wanted age; of any age if there are none.
  std::uint32_t victim(Position at) const {
    std::uint32_t any = 0;
    bool found = false;
    std::size_t looked = 0;
    for (auto each = resident_.rbegin(); each != resident_.rend(); ++each) {
      const State& state = states_[each->second];
      if (state.needed) continue;
      if (state.used + age_ <= at) return each->second;
      if (!found) any = each->second;
      found = true;
      if (++looked == kLooks) break;
    }
    return any;
  }

  // Takes the rooms that are free first; the time from which all of it is.
  std::uint64_t take_room(std::uint64_t bytes) {
    std::ranges::sort(rooms_, {}, &Room::from_ns);
    std::uint64_t from_ns = 0;
    // What was free from the begin has no entry.
    std::uint64_t listed = 0;
    for (const Room& room : rooms_) listed += room.bytes;
    const std::uint64_t unlisted = free_ - std::min(free_, listed);
    bytes -= std::min(bytes, unlisted);
    std::size_t used_up = 0;
    for (Room& room : rooms_) {
      if (bytes == 0) break;
      const std::uint64_t taken = std::min(room.bytes, bytes);
      room.bytes -= taken;
      bytes -= taken;
      from_ns = std::max(from_ns, room.from_ns);
      if (room.bytes == 0) ++used_up;
    }
    rooms_.erase(rooms_.begin(), rooms_.begin() + std::ptrdiff_t(used_up));
    return from_ns;
  }

  static constexpr std::size_t kLooks = 256;
  const Program& program_;
  const Writes writes_;
  const Position age_;
  const Machine& machine_;
  std::vector<State> states_;
  std::vector<Position> next_;  // by use
  std::set<std::pair<Position, std::uint32_t>> resident_;
  std::vector<Room> rooms_;  // free, from a time on
  std::uint64_t free_;
  std::uint64_t gpu_ns_ = 0, in_ns_ = 0, out_ns_ = 0;
  Schedule result_;
};

}  // namespace

Schedule schedule(const Program& program, const Machine& machine, Writes writes) {
  Schedule best;
  bool any = false;
  for (const Position age : kAges) {
    const Schedule each = Simulation(program, machine, writes, age).run();
    if (!std::exchange(any, true) || each.time_ns < best.time_ns) best = each;
  }
  return best;
}

}  // namespace vmem::trace
