#include "migration/policy/look_ahead.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "migration/policy/followed_units.hpp"
#include "migration/policy/forecast.hpp"
#include "migration/policy/use_history.hpp"

namespace vmem::migration {
namespace {

using Position = UseHistory::Position;

// The share of the budget that is prefetched even if other pages must be evicted for it. It must
// fit next to the pages that GPU work in progress uses.
constexpr std::uint64_t kFetchedShare = 1, kFetchedOf = 8;
// A forecast is valid for kForecastUses uses or 1/kForecastOf of those that it covers, whichever is
// more, but for at most half of them. A forecast over 15,000 uses takes a millisecond.
constexpr Position kForecastUses = 8, kForecastOf = 32;

// How far the pages of a forecast's events were handed out. Each is handed out once; early
// evictions start over after the last.
struct Cursor {
  std::size_t event = 0;
  std::uint32_t page = 0, handed = 0;  // of the current unit
};

class LookAhead final : public Policy {
 public:
  LookAhead(const LookAheadOptions& options, std::unique_ptr<Policy> otherwise)
      : options_(options), otherwise_(std::move(otherwise)) {}

  void region_begins(const RegionShape& region) override;
  void region_ends(RegionId region) override;
  void page_arrived(PageId page, Cause cause) override;
  void page_left(PageId page) override;
  void page_prefers(PageId page, Preference preference) override;
  void used(const Use& use) override;
  void pages_dead(PageId first, std::uint32_t count, bool dead) override;
  std::size_t victims(const VictimQuery& query, std::span<PageId> out) override;
  std::size_t prefetches(const PrefetchQuery& query, std::span<PageId> out) override;
  std::size_t leaves(const PrefetchQuery& query, std::span<PageId> out) override;
  std::uint64_t metadata_bytes() const override;

 private:
  // Units with pages in HBM, by next use, farthest first.
  struct Candidate {
    Position next;
    UnitId unit;
    bool operator<(const Candidate& other) const { return next != other.next ? next > other.next : unit < other.unit; }
  };
  using Candidates = std::set<Candidate>;
  // The stages of a round of victims, best first. Dead contents need no copy. A page of another
  // size costs the destruction and creation of a frame, so among far uses the requested size comes
  // first. Pages needed soon come last.
  enum class Stage : std::uint8_t { dead_of_size, dead, far_of_size, far, near, end };
  struct Round {
    std::uint64_t number = 0;
    Stage stage = Stage::end;
    std::uint64_t page_bytes = 0;
    Position far = 0;  // uses from here on are far: the second half of the time to the farthest one
    std::optional<Candidate> at;
    std::uint32_t page = 0;  // of the current unit
    bool others_asked = false;
  };
  struct DeviceState {
    Candidates live, dead;
    Round round;
    std::uint32_t regions = 0;  // undeclared ones
    Forecast forecast;
    // The program's position at the last forecast; kNever: the forecast is void.
    Position made = UseHistory::kNever;
    Cursor to_fetch, to_leave;
  };

  void follow(const RegionShape& shape);
  void forget(RegionId region);
  void use(Followed& unit);
  void list(Followed& unit);
  Position next_event(const Followed& unit, Position after) const;
  void unlist(Followed& unit);
  void expire(Followed& unit);
  void expire_all();
  void renew_stale();
  DeviceState& device(int index) {
    if (std::size_t(index) >= devices_.size()) devices_.resize(std::size_t(index) + 1);
    return devices_[std::size_t(index)];
  }
  Candidates& list_of(const Followed& unit) {
    DeviceState& device = devices_[std::size_t(unit.device)];
    return unit.dead ? device.dead : device.live;
  }
  Round begin_round(const DeviceState& device, std::uint64_t page_bytes);
  enum class Suits : std::uint8_t { yes, no, none_further };
  static Suits suits(const Round& round, const Candidate& candidate, const Followed& unit);
  std::size_t offer(DeviceState& device, std::span<PageId> out);
  std::size_t offer_stage(DeviceState& device, std::span<PageId> out);
  std::size_t offer_others(DeviceState& device, VictimQuery query, std::span<PageId> out);
  bool foresees(DeviceState& device, const PrefetchQuery& query);
  template <class Wanted>
  std::size_t hand_out(std::span<const Forecast::Event> events, Cursor& cursor, std::span<PageId> out, Wanted&& wanted);
  std::uint64_t budget(int device) const;

  const LookAheadOptions options_;
  const std::unique_ptr<Policy> otherwise_;
  UseHistory history_;
  FollowedUnits units_;
  // Units whose next use may have changed. Between two questions for victims a unit is used many
  // times: only then is it sorted anew.
  std::vector<UnitId> stale_;
  std::vector<DeviceState> devices_;
  std::uint64_t rounds_ = 0;
  using Run = std::tuple<RegionId, std::uint32_t, std::uint32_t>;  // first page, count
  Run last_used_;
};

void LookAhead::region_begins(const RegionShape& shape) {
  otherwise_->region_begins(shape);
  forget(shape.id);
  if (shape.undeclared) follow(shape);
}

// std::bad_alloc: nothing of the region is followed.
void LookAhead::follow(const RegionShape& shape) {
  DeviceState& device = this->device(shape.device);
  units_.add(shape);
  ++device.regions;
}

void LookAhead::region_ends(RegionId id) {
  otherwise_->region_ends(id);
  forget(id);
  if (!units_.empty()) return;
  // Nothing is left to follow: keep no memory.
  history_ = UseHistory();
  units_ = FollowedUnits();
  stale_ = decltype(stale_)();
  devices_ = decltype(devices_)();
}

void LookAhead::forget(RegionId id) {
  last_used_ = {};
  const RegionShape* const shape = units_.region(id);
  if (shape == nullptr) return;
  DeviceState& device = this->device(shape->device);
  units_.remove(id, [&](Followed& unit) {
    unlist(unit);
    history_.forget(unit.id);
  });
  device.made = UseHistory::kNever;
  --device.regions;
}

void LookAhead::page_arrived(PageId page, Cause cause) {
  otherwise_->page_arrived(page, cause);
  Followed* const unit = units_.find(page);
  if (unit == nullptr || unit->resident[page.index - unit->first]) return;
  unit->resident[page.index - unit->first] = true;
  if (unit->resident_pages++ == 0) list(*unit);
}

void LookAhead::page_left(PageId page) {
  otherwise_->page_left(page);
  Followed* const unit = units_.find(page);
  if (unit == nullptr || !unit->resident[page.index - unit->first]) return;
  unit->resident[page.index - unit->first] = false;
  if (--unit->resident_pages == 0) unlist(*unit);
}

void LookAhead::page_prefers(PageId page, Preference preference) {
  otherwise_->page_prefers(page, preference);
  Followed* const unit = units_.find(page);
  const bool in_place = preference == Preference::in_place;
  if (unit == nullptr || unit->in_place[page.index - unit->first] == in_place) return;
  unit->in_place[page.index - unit->first] = in_place;
  if (in_place) {
    ++unit->in_place_pages;
  } else {
    --unit->in_place_pages;
  }
  expire(*unit);
  device(unit->device).made = UseHistory::kNever;
}

// A unit of several pages dies as a whole.
void LookAhead::pages_dead(PageId first, std::uint32_t count, bool dead) {
  otherwise_->pages_dead(first, count, dead);
  last_used_ = {};
  for (Followed* unit = units_.find(first); unit != nullptr; unit = units_.find(first)) {
    if (unit->dead != dead) {
      if (dead) history_.add_death(unit->id);
      unlist(*unit);
      unit->dead = dead;
      list(*unit);
    }
    if (count <= unit->pages) return;
    count -= unit->pages;
    first.index += unit->pages;
  }
}

void LookAhead::used(const Use& used) {
  otherwise_->used(used);
  // A block that is used again at once is no news, as with single units (UseHistory::Step).
  const Run run{used.region, used.first, used.count};
  if (std::exchange(last_used_, run) == run) return;
  PageId page{used.region, used.first};
  for (std::uint32_t left = used.count; left > 0; --left, ++page.index) {
    Followed* const unit = units_.find(page);
    if (unit == nullptr) return;
    use(*unit);
    if (unit->pages != 1) return;  // a use counts for all of them
  }
}

void LookAhead::use(Followed& unit) {
  const Position before = history_.trusted() ? history_.now() : UseHistory::kNever;
  switch (history_.add(unit.id)) {
    case UseHistory::Step::repeated:
      return;
    case UseHistory::Step::jumped:
      for (DeviceState& device : devices_) device.made = UseHistory::kNever;
      if (before != UseHistory::kNever || history_.trusted()) {
        expire_all();
      } else {
        expire(unit);
      }
      break;
    case UseHistory::Step::advanced:
      if (before == UseHistory::kNever) {
        if (!history_.trusted()) break;
        for (DeviceState& device : devices_) device.made = UseHistory::kNever;
        expire_all();
        break;
      }
      // Expected uses that were skipped have another next use now, too.
      for (Position place = before + 1; place <= history_.now(); ++place) {
        Followed* passed = units_.find(history_.at(place));
        if (passed != nullptr) expire(*passed);
      }
      break;
    case UseHistory::Step::strayed:
      expire(unit);
      break;
  }
}

void LookAhead::list(Followed& unit) {
  if (unit.listed || unit.resident_pages == 0) return;
  unit.next = next_event(unit, history_.now());
  list_of(unit).insert({unit.next, unit.id});
  unit.listed = true;
}

// A unit that will die soon is worth keeping: dead, it is evicted without a copy.
Position LookAhead::next_event(const Followed& unit, Position after) const {
  if (!history_.trusted() || unit.used_in_place()) return UseHistory::kNever;
  return std::min(history_.next_use(unit.id, after), history_.next_death(unit.id, after));
}

void LookAhead::unlist(Followed& unit) {
  if (!unit.listed) return;
  list_of(unit).erase({unit.next, unit.id});
  unit.listed = false;
}

void LookAhead::expire(Followed& unit) {
  unit.stale_at = history_.now();
  if (!unit.listed || unit.stale) return;
  // Ids of ended units would pile up while nobody asks for victims.
  if (stale_.size() > 2 * units_.all().size()) renew_stale();
  stale_.push_back(unit.id);
  unit.stale = true;
}

void LookAhead::expire_all() {
  for (Followed& unit : units_.all()) expire(unit);
}

void LookAhead::renew_stale() {
  for (const UnitId id : stale_) {
    Followed* const unit = units_.find(id);
    if (unit == nullptr || !std::exchange(unit->stale, false)) continue;
    if (!unit->listed) continue;
    Candidates& list = list_of(*unit);
    auto node = list.extract({unit->next, id});
    unit->next = next_event(*unit, unit->stale_at);
    node.value().next = unit->next;
    list.insert(std::move(node));
  }
  stale_.clear();
}

std::uint64_t LookAhead::budget(int device) const {
  return std::size_t(device) < options_.hbm_bytes.size() ? options_.hbm_bytes[std::size_t(device)] : 0;
}

LookAhead::Round LookAhead::begin_round(const DeviceState& device, std::uint64_t page_bytes) {
  Round round{.number = ++rounds_, .stage = Stage::dead_of_size, .page_bytes = page_bytes, .at = std::nullopt};
  const auto known = [](const Candidate& each) { return each.next != UseHistory::kNever; };
  const auto farthest = std::ranges::find_if(device.live, known);
  const Position now = history_.now();
  if (farthest != device.live.end() && farthest->next > now) round.far = farthest->next - (farthest->next - now) / 2;
  return round;
}

LookAhead::Suits LookAhead::suits(const Round& round, const Candidate& candidate, const Followed& unit) {
  const bool of_size = unit.page_bytes == round.page_bytes;
  const bool far = candidate.next >= round.far;
  const auto if_true = [](bool yes) { return yes ? Suits::yes : Suits::no; };
  switch (round.stage) {
    case Stage::dead_of_size:
      return if_true(of_size);
    case Stage::dead:
      return if_true(!of_size);
    case Stage::far_of_size:
      return far ? if_true(of_size) : Suits::none_further;
    case Stage::far:
      return far ? if_true(!of_size) : Suits::none_further;
    case Stage::near:
      return if_true(!far);
    case Stage::end:
      break;
  }
  return Suits::none_further;
}

// Continues where the last call stopped: the rest of the current candidate's pages, then the next
// candidates.
std::size_t LookAhead::offer_stage(DeviceState& device, std::span<PageId> out) {
  Round& round = device.round;
  const Candidates& from = round.stage < Stage::far_of_size ? device.dead : device.live;
  std::size_t count = 0;
  auto at = round.at ? from.lower_bound(*round.at) : from.begin();
  std::uint32_t page = round.at && at != from.end() && !(*round.at < *at) ? round.page : 0;
  for (; at != from.end(); ++at, page = 0) {
    Followed& unit = units_[at->unit];
    const Suits suited = suits(round, *at, unit);
    if (suited == Suits::none_further) break;
    for (; suited == Suits::yes && page < unit.pages; ++page) {
      if (!unit.resident[page]) continue;
      if (count == out.size()) {
        round.at = *at;
        round.page = page;
        return count;
      }
      out[count++] = unit.page(page);
    }
    if (suited == Suits::yes) unit.offered_in = round.number;
  }
  round.stage = Stage(std::uint8_t(round.stage) + 1);
  round.at.reset();
  return count;
}

std::size_t LookAhead::offer(DeviceState& device, std::span<PageId> out) {
  Round& round = device.round;
  std::size_t count = 0;
  while (round.stage < Stage::end && count < out.size()) {
    if (round.stage >= Stage::far_of_size && !history_.trusted()) {
      round.stage = Stage::end;
      break;
    }
    count += offer_stage(device, out.subspan(count));
  }
  return count;
}

std::size_t LookAhead::victims(const VictimQuery& query, std::span<PageId> out) {
  DeviceState& device = this->device(query.device);
  renew_stale();
  if (!query.again) device.round = begin_round(device, query.page_bytes);
  std::size_t count = 0;
  if (device.round.stage != Stage::end) count = offer(device, out);
  if (count == out.size() || device.round.stage != Stage::end) return count;
  return count + offer_others(device, query, out.subspan(count));
}

// The other policy's offers, without pages that this round has offered.
std::size_t LookAhead::offer_others(DeviceState& device, VictimQuery query, std::span<PageId> out) {
  std::size_t count = 0;
  while (count < out.size()) {
    const auto rest = out.subspan(count);
    query.again = std::exchange(device.round.others_asked, true);
    const std::size_t offered = otherwise_->victims(query, rest);
    const auto repeated = std::ranges::remove_if(rest.first(offered), [&](PageId page) {
      const Followed* const unit = units_.find(page);
      return unit != nullptr && unit->offered_in == device.round.number;
    });
    count += offered - repeated.size();
    if (offered < rest.size()) break;
  }
  return count;
}

// True if a valid forecast exists; makes one if necessary.
bool LookAhead::foresees(DeviceState& device, const PrefetchQuery& query) {
  if (!history_.trusted() || device.regions == 0) return false;
  const Position now = history_.now();
  const Position expected = history_.end() - now;
  const Position holds = std::min(std::max(kForecastUses, expected / kForecastOf), std::max(Position{1}, expected / 2));
  if (device.made <= now && now - device.made < holds) return true;
  renew_stale();
  std::uint64_t free = query.bytes_free;
  for (const Candidate& each : device.dead) {
    const Followed& unit = units_[each.unit];
    free += unit.resident_pages * unit.page_bytes;
  }
  std::vector<UnitId> residents;
  for (const Candidate& each : device.live) {
    const Followed& unit = units_[each.unit];
    if (unit.used_in_place()) {
      free += unit.resident_pages * unit.page_bytes;
    } else {
      residents.push_back(each.unit);
    }
  }
  device.forecast.make(history_, free, budget(query.device) / kFetchedOf * kFetchedShare, residents,
                       [&](UnitId id) -> std::optional<Forecast::Holding> {
                         const Followed* const unit = units_.find(id);
                         if (unit == nullptr || unit->device != query.device) return std::nullopt;
                         if (unit->used_in_place()) return std::nullopt;
                         return Forecast::Holding{unit->pages * unit->page_bytes, unit->page_bytes,
                                                  unit->resident_pages * unit->page_bytes, unit->dead};
                       });
  device.made = now;
  device.to_fetch = device.to_leave = {};
  return true;
}

template <class Wanted>
std::size_t LookAhead::hand_out(std::span<const Forecast::Event> events, Cursor& cursor, std::span<PageId> out,
                                Wanted&& wanted) {
  std::size_t count = 0;
  for (; cursor.event < events.size(); ++cursor.event, cursor.page = cursor.handed = 0) {
    const Followed* const unit = units_.find(events[cursor.event].unit);
    if (unit == nullptr || unit->dead) continue;
    for (; cursor.page < unit->pages && cursor.handed < events[cursor.event].pages; ++cursor.page) {
      if (count == out.size()) return count;
      if (!wanted(*unit, cursor.page, events[cursor.event])) continue;
      out[count++] = unit->page(cursor.page);
      ++cursor.handed;
    }
  }
  return count;
}

std::size_t LookAhead::prefetches(const PrefetchQuery& query, std::span<PageId> out) {
  DeviceState& device = this->device(query.device);
  if (!foresees(device, query)) return otherwise_->prefetches(query, out);
  PrefetchQuery rest = query;
  std::uint64_t& room = rest.bytes_room;
  const std::size_t count = hand_out(device.forecast.fetches(), device.to_fetch, out,
                                     [&](const Followed& unit, std::uint32_t page, const Forecast::Event& event) {
                                       if (event.at <= history_.now()) return false;
                                       if (unit.resident[page] || unit.page_bytes > room) return false;
                                       room -= unit.page_bytes;
                                       return true;
                                     });
  if (count == out.size()) return count;
  const std::size_t others = otherwise_->prefetches(rest, out.subspan(count));
  // Of what is followed the forecast has named all that is worth its room.
  const auto declined =
      std::ranges::remove_if(out.subspan(count, others), [&](PageId page) { return units_.find(page); });
  return count + others - declined.size();
}

std::size_t LookAhead::leaves(const PrefetchQuery& query, std::span<PageId> out) {
  DeviceState& device = this->device(query.device);
  if (!foresees(device, query)) return 0;
  const auto events = device.forecast.leaves();
  if (device.to_leave.event == events.size()) device.to_leave = {};
  return hand_out(events, device.to_leave, out,
                  [&](const Followed& unit, std::uint32_t page, const Forecast::Event& event) {
                    return unit.resident[page] && history_.next_use(unit.id) > event.at;
                  });
}

std::uint64_t LookAhead::metadata_bytes() const {
  std::uint64_t bytes = otherwise_->metadata_bytes();
  for (const Followed& unit : units_.all())
    bytes += sizeof(Followed) + sizeof(Candidate) * 2 + unit.resident.size() / 4;
  for (const DeviceState& device : devices_) bytes += device.forecast.bytes();
  return bytes + stale_.capacity() * sizeof(UnitId) + (units_.empty() ? 0 : history_.bytes());
}

}  // namespace

std::unique_ptr<Policy> make_look_ahead_policy(const LookAheadOptions& options, std::unique_ptr<Policy> otherwise) {
  return std::make_unique<LookAhead>(options, std::move(otherwise));
}

}  // namespace vmem::migration
