// What the HBM of one device will be asked for: the expected uses are played through in order, and where there is no room, what is
// needed last gives way (Belady's rule). What would give way without having been used before can go right now, while the link is
// idle; what is missing can be fetched right now if the room for it is not needed before.
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
  // A region of the device, as it is now.
  struct Holding {
    std::uint64_t bytes = 0;
    std::uint64_t page_bytes = 0;
    std::uint64_t resident_bytes = 0;  // of these, in HBM
    bool dead = false;
  };
  using Lookup = std::function<std::optional<Holding>(RegionId)>;  // nothing: not of this device
  struct Event {
    RegionId region;
    Position at;                              // leaves: when its room is wanted; fetches: its next use
    std::uint32_t pages = ~std::uint32_t{0};  // at most so many of it
  };

  // `free_bytes`: what nobody uses, dead regions' memory included. `near_bytes`: of the regions used next, so much is fetched whether
  // there is room or not. `residents`: the live regions with pages in HBM. REQUIRES: history.trusted().
  void make(const UseHistory& history, std::uint64_t free_bytes, std::uint64_t near_bytes,
            std::span<const RegionId> residents, const Lookup& lookup);
  // In the order in which their room will be wanted.
  std::span<const Event> leaves() const { return leaves_; }
  // In the order of their uses.
  std::span<const Event> fetches() const { return fetches_; }
  std::uint64_t bytes() const;  // kept from one time to the next

 private:
  struct State {
    RegionId id;
    std::uint64_t bytes = 0, page_bytes = 0, resident = 0;
    Position first = 0;  // use in the forecast
    Position key = 0;    // what is expected of it next, use or death
    std::uint32_t heap = 0;
    bool present = false, dead = false;
    bool used = false, left = false;  // in the forecast
  };
  struct Entry {
    Position key;
    std::uint32_t state;
    bool operator<(const Entry& other) const { return key != other.key ? key < other.key : state < other.state; }
  };
  struct Heap {  // of the regions with pages of a size; entries whose state has another key by now are void
    std::uint64_t page_bytes;
    std::priority_queue<Entry> entries;
  };

  State& state_of(RegionId region, const Lookup& lookup);
  std::uint32_t heap_of(std::uint64_t page_bytes);
  void use(const UseHistory& history, Position place, State& state);
  bool make_room(const State& asking, Position place);
  const Entry* top(Heap& heap);

  std::vector<State> states_;
  std::vector<std::uint32_t> index_;  // by region id: its place in states_, plus one
  std::vector<Heap> heaps_;
  std::vector<Event> leaves_, fetches_;
  Position length_ = 0;     // of what is expected
  std::int64_t room_ = 0;   // at the place in the forecast
  std::int64_t slack_ = 0;  // the least room up to there, less what is fetched ahead
  std::uint64_t met_ = 0, near_ = 0;
};

}  // namespace vmem::migration
