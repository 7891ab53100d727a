// Simulates the expected uses of one device's HBM in order, with Belady's rule: where room is
// missing, the unit with the farthest next use is evicted. A unit that the simulation evicts
// before its first use can be evicted now, while the link is idle. A missing unit can be fetched
// now if its room is not needed before its use, given that those units leave now.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <span>
#include <vector>

#include "migration/policy/use_history.hpp"

namespace vmem::migration {

class Forecast {
 public:
  using Position = UseHistory::Position;
  // The current state of a unit of the device.
  struct Holding {
    std::uint64_t bytes = 0;
    std::uint64_t page_bytes = 0;
    std::uint64_t resident_bytes = 0;  // of `bytes`, in HBM
    bool dead = false;
  };
  // Empty: the unit is not on this device.
  using Lookup = std::function<std::optional<Holding>(UnitId)>;
  struct Event {
    UnitId unit;
    Position at;                              // leaves: its room is needed; fetches: its next use
    std::uint32_t pages = ~std::uint32_t{0};  // at most, of the unit
  };

  // `free_bytes`: free memory plus that of dead units. `near_bytes`: of the units used next, as
  // many bytes are fetched even without room. `residents`: live units with pages in HBM.
  // REQUIRES: history.trusted().
  void make(const UseHistory& history, std::uint64_t free_bytes, std::uint64_t near_bytes,
            std::span<const UnitId> residents, const Lookup& lookup);
  // In the order in which their room is needed.
  std::span<const Event> leaves() const { return leaves_; }
  // In the order of their uses.
  std::span<const Event> fetches() const { return fetches_; }
  std::uint64_t bytes() const;  // memory kept between forecasts

 private:
  struct State {
    UnitId id;
    std::uint64_t bytes = 0, page_bytes = 0, resident = 0;
    Position first = 0;  // first use in the forecast
    Position key = 0;    // position of the next expected use or death
    std::uint32_t heap = 0;
    bool present = false, dead = false;
    bool used = false, left = false;  // used or evicted in the forecast
  };
  struct Entry {
    Position key;
    std::uint32_t state;
    bool operator<(const Entry& other) const { return key != other.key ? key < other.key : state < other.state; }
  };
  // Of units with one page size. An entry whose key is no longer its state's is void.
  struct Heap {
    std::uint64_t page_bytes;
    std::priority_queue<Entry> entries;
  };

  // What decides about fetches, in the order of the uses: a missing unit is used, or room becomes
  // scarcer. How much leaves in all is known only at the end (choose_fetches).
  struct Moment {
    UnitId unit;  // the missing one; 0: room
    Position place = 0;
    std::int64_t bytes = 0;  // that are missing; or the room, less what left until then
    bool near = false;
  };

  State& state_of(UnitId unit, const Lookup& lookup);
  std::uint32_t heap_of(std::uint64_t page_bytes);
  void use(const UseHistory& history, Position place, State& state);
  bool make_room(const State& asking, Position place);
  void note_room();
  void choose_fetches(std::uint64_t free_bytes);
  const Entry* top(Heap& heap);

  std::vector<State> states_;
  std::vector<std::uint32_t> index_;  // by unit id: index into states_, plus one
  std::vector<Heap> heaps_;
  std::vector<Event> leaves_, fetches_;
  std::vector<Moment> moments_;
  Position length_ = 0;    // number of expected uses
  std::int64_t room_ = 0;  // free bytes at the current position
  std::int64_t left_ = 0;  // bytes of leaves_ so far
  std::uint64_t met_ = 0, near_ = 0;
};

}  // namespace vmem::migration
