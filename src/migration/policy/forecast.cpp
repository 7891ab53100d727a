#include "migration/policy/forecast.hpp"

#include <algorithm>
#include <utility>

namespace vmem::migration {
namespace {

// Units used again within this share of the expected uses, and within this many uses, are never
// evicted and need no bookkeeping.
constexpr UseHistory::Position kSoonOf = 16, kSoonMax = 64;

}  // namespace

void Forecast::make(const UseHistory& history, std::uint64_t free_bytes, std::uint64_t near_bytes,
                    std::span<const UnitId> residents, const Lookup& lookup) {
  for (const State& state : states_) index_[state.id.value] = 0;
  states_.clear();
  for (Heap& heap : heaps_) heap.entries = {};
  leaves_.clear();
  fetches_.clear();
  moments_.clear();
  met_ = 0;
  left_ = 0;
  near_ = near_bytes;
  room_ = std::int64_t(free_bytes);
  length_ = history.end() - history.now();
  for (const UnitId unit : residents) {
    State& state = state_of(unit, lookup);
    if (state.resident == 0) continue;
    state.key = std::min(history.next_use(unit), history.next_death(unit));
    heaps_[state.heap].entries.push({state.key, index_[unit.value] - 1});
  }
  const auto& deaths = history.deaths();
  auto death = std::ranges::upper_bound(deaths, history.now(), {}, &UseHistory::Death::at);
  for (Position place = history.now() + 1; place < history.end(); ++place) {
    for (; death != deaths.end() && death->at <= place; ++death) {
      State& state = state_of(death->unit, lookup);
      room_ += std::int64_t(std::exchange(state.resident, 0));
      state.dead = true;
    }
    State& state = state_of(history.at(place), lookup);
    if (state.present) use(history, place, state);
  }
  choose_fetches(free_bytes);
}

void Forecast::use(const UseHistory& history, Position place, State& state) {
  const bool first = !std::exchange(state.used, true);
  if (first) {
    state.first = place;
    met_ += state.bytes;
  }
  const auto missing = std::int64_t(state.bytes - state.resident);
  if (missing != 0) {
    if (first && !state.left && !state.dead) moments_.push_back({state.id, place, missing, met_ <= near_});
    state.key = 0;  // it must not evict itself
    room_ -= missing;
    while (room_ < 0 && make_room(state, place)) {
    }
    state.resident = state.bytes;
    state.dead = false;
    note_room();
  }
  state.key = history.after(place);
  // The program is expected to repeat the whole sequence.
  if (state.key == UseHistory::kNever) state.key = state.first + length_;
  if (state.key - place > std::min(kSoonMax, length_ / kSoonOf))
    heaps_[state.heap].entries.push({state.key, index_[state.id.value] - 1});
}

// Evicts the unit needed last; but one with pages of the requested size, if it is needed late.
bool Forecast::make_room(const State& asking, Position place) {
  const Entry* same = top(heaps_[asking.heap]);
  const Entry* last = same;
  for (Heap& heap : heaps_) {
    const Entry* each = top(heap);
    if (each != nullptr && (last == nullptr || *last < *each)) last = each;
  }
  if (last == nullptr) return false;
  const bool late = same != nullptr && same->key - place >= length_ / 2;
  State& state = states_[(late ? same : last)->state];
  const std::uint64_t wanted = (std::uint64_t(-room_) + state.page_bytes - 1) / state.page_bytes * state.page_bytes;
  const std::uint64_t given = std::min(state.resident, wanted);
  if (!state.used) {
    const auto pages = std::uint32_t(given / state.page_bytes);
    if (!leaves_.empty() && leaves_.back().unit == state.id) {
      leaves_.back().pages += pages;
    } else {
      leaves_.push_back({state.id, place, pages});
    }
  }
  if (!state.used) left_ += std::int64_t(given);
  state.left = true;  // no prefetch: it is resident now
  state.resident -= given;
  room_ += std::int64_t(given);
  return true;
}

void Forecast::note_room() {
  const std::int64_t bytes = room_ - left_;
  if (moments_.empty() || moments_.back().unit.value != 0) {
    moments_.push_back({.bytes = bytes});
  } else {
    moments_.back().bytes = std::min(moments_.back().bytes, bytes);
  }
}

// If all of leaves_ leave now, then the room at any position is greater by those that would leave
// later. A unit fetched now takes its bytes from all positions before its use, and from none after.
void Forecast::choose_fetches(std::uint64_t free_bytes) {
  std::int64_t slack = std::int64_t(free_bytes) + left_;  // the least room so far, minus fetches
  for (const Moment& moment : moments_) {
    if (moment.unit.value == 0) {
      slack = std::min(slack, left_ + moment.bytes);
    } else if (moment.near || slack >= moment.bytes) {
      fetches_.push_back({moment.unit, moment.place});
      slack -= moment.bytes;
    }
  }
}

const Forecast::Entry* Forecast::top(Heap& heap) {
  while (!heap.entries.empty()) {
    const Entry& entry = heap.entries.top();
    const State& state = states_[entry.state];
    if (state.key == entry.key && state.resident != 0) return &entry;
    heap.entries.pop();
  }
  return nullptr;
}

Forecast::State& Forecast::state_of(UnitId unit, const Lookup& lookup) {
  if (unit.value >= index_.size()) index_.resize(unit.value + 1);
  std::uint32_t& place = index_[unit.value];
  if (place != 0) return states_[place - 1];
  State& state = states_.emplace_back();
  place = std::uint32_t(states_.size());
  state.id = unit;
  if (const auto holding = lookup(unit)) {
    state.present = true;
    state.bytes = holding->bytes;
    state.page_bytes = holding->page_bytes;
    state.resident = holding->dead ? 0 : holding->resident_bytes;
    state.dead = holding->dead;
    state.heap = heap_of(state.page_bytes);
  }
  return state;
}

std::uint64_t Forecast::bytes() const {
  std::uint64_t bytes = states_.capacity() * sizeof(State) + index_.capacity() * sizeof(std::uint32_t) +
                        (leaves_.capacity() + fetches_.capacity()) * sizeof(Event) +
                        moments_.capacity() * sizeof(Moment);
  for (const Heap& heap : heaps_) bytes += heap.entries.size() * sizeof(Entry);
  return bytes;
}

std::uint32_t Forecast::heap_of(std::uint64_t page_bytes) {
  const auto found = std::ranges::find(heaps_, page_bytes, &Heap::page_bytes);
  if (found != heaps_.end()) return std::uint32_t(found - heaps_.begin());
  heaps_.push_back({page_bytes, {}});
  return std::uint32_t(heaps_.size() - 1);
}

}  // namespace vmem::migration
