#include "runtime/launch/tables/pointer_tables.hpp"

#include <algorithm>

namespace vmem::runtime {

// A table at the base of a small allocation is reached from any address in it, hence kSmallMax.
void PointerTables::count_near(std::uintptr_t table, int by) {
  const std::uintptr_t begin = (table - std::min(table, kAround)) / kAround,
                       end = (table + kSmallMax + kAround) / kAround;
  for (std::uintptr_t block = begin; block <= end; ++block) near_[block % near_.size()] += std::uint32_t(by);
}

PointerTables::Place& PointerTables::place_at(std::uintptr_t table) {
  const auto [found, made] = places_.try_emplace(table);
  if (made) count_near(table, 1);
  found->second.used = launch_;
  return found->second;
}

PointerTables::Places::iterator PointerTables::erase(Places::iterator place) {
  count_near(place->first, -1);
  if (!place->second.targets.empty()) --known_;
  return places_.erase(place);
}

void PointerTables::erase_if_empty(Places::iterator place) {
  if (place->second.targets.empty() && place->second.looks.empty()) erase(place);
}

// The newcomer got its first targets: evicts the least recently used place if there are too many.
void PointerTables::make_room(const Place& newcomer) {
  if (++known_ <= kKnownMax) return;
  auto oldest = places_.end();
  for (auto at = places_.begin(); at != places_.end(); ++at) {
    if (at->second.targets.empty() || &at->second == &newcomer) continue;
    if (oldest == places_.end() || at->second.used < oldest->second.used) oldest = at;
  }
  --known_;
  oldest->second.targets.clear();
  erase_if_empty(oldest);
}

void PointerTables::note(std::uintptr_t table, std::shared_ptr<Look> look) {
  place_at(table).looks.push_back(std::move(look));
}

// Removes the look from the table's list. Returns places_.end() if the table was freed since, even
// if another table lies there now.
PointerTables::Places::iterator PointerTables::noted(std::uintptr_t table, const Look& look) {
  const auto found = places_.find(table);
  if (found == places_.end()) return found;
  auto& looks = found->second.looks;
  const auto here = std::ranges::find(looks, &look, &std::shared_ptr<Look>::get);
  if (here == looks.end()) return places_.end();
  looks.erase(here);
  return found;
}

void PointerTables::settle(std::uintptr_t table, const Look& look, std::span<const std::uintptr_t> targets,
                           std::size_t bytes, bool whole) {
  const auto found = noted(table, look);
  if (found == places_.end()) return;
  Place& place = found->second;
  // Counted at once: an allocation of a later target may fail.
  const auto add = [&](std::uintptr_t target) {
    const bool first = place.targets.empty();
    std::uint64_t& told = place.targets[target];
    told = std::max(told, look.number);
    if (first) make_room(place);
  };
  if (!whole) {
    std::ranges::for_each(targets, add);
    std::ranges::for_each(look.doubts, add);
  } else if (look.number > place.whole) {  // else a later look saw the current contents
    std::ranges::for_each(targets, add);
    const bool had_some = !place.targets.empty();
    std::erase_if(place.targets, [&](const auto& each) { return each.second < look.number; });
    if (had_some && place.targets.empty()) --known_;
    place.whole = look.number;
    place.bytes = bytes;
  }
  erase_if_empty(found);
}

bool PointerTables::drop(std::uintptr_t table, const Look& look) {
  const auto found = noted(table, look);
  if (found == places_.end()) return false;
  erase_if_empty(found);
  return true;
}

void PointerTables::believe(std::uintptr_t table, std::span<const std::uintptr_t> targets) {
  if (targets.empty()) return;
  Place& place = place_at(table);
  if (place.targets.empty()) {
    place.targets[targets.front()] = looks_;
    make_room(place);
  }
  for (const std::uintptr_t target : targets) place.targets[target] = looks_;
}

void PointerTables::write(std::uintptr_t table, std::span<const std::uintptr_t> targets, std::size_t bytes) {
  if (targets.empty() && !places_.contains(table)) return;
  const std::size_t known = place_at(table).bytes;
  const auto look = begin_look({});
  note(table, look);
  settle(table, *look, targets, bytes, bytes >= known);
}

void PointerTables::copy(Part to, Part from, std::size_t bytes) {
  if (places_.empty()) return;
  const auto bring = [&](const Place& place, std::uintptr_t offset) {
    std::vector<std::uintptr_t> targets;
    for (const auto& [target, told] : place.targets) targets.push_back(target);
    for (const auto& look : place.looks) targets.insert(targets.end(), look->doubts.begin(), look->doubts.end());
    believe(to.small ? to.address : to.address + offset, targets);
  };
  if (from.small) {
    if (const auto found = places_.find(from.address); found != places_.end()) bring(found->second, 0);
    return;
  }
  // Collected first: places made in the loop may lie in the copied range.
  std::vector<std::uintptr_t> copied;
  for (auto at = places_.lower_bound(from.address); at != places_.end() && at->first - from.address < bytes; ++at)
    copied.push_back(at->first);
  for (const std::uintptr_t each : copied) {
    if (const auto found = places_.find(each); found != places_.end()) bring(found->second, each - from.address);
  }
}

void PointerTables::forget_tables(std::uintptr_t base, std::uint64_t bytes) {
  for (Last& last : set_of(base)) {
    if (last.base == base) last = {};
  }
  for (auto at = places_.lower_bound(base); at != places_.end() && at->first - base < bytes;) at = erase(at);
}

void PointerTables::add_known(Place& place) {
  place.used = launch_;
  for (const auto& [target, told] : place.targets) targets_.push_back({target, launch_});
  for (const auto& look : place.looks) {
    if (std::exchange(look->reached_by, launch_) == launch_) continue;
    for (const std::uintptr_t target : look->doubts) targets_.push_back({target, launch_});
  }
}

void PointerTables::add_known() {
  auto small = smalls_named_.begin();
  for (const std::uintptr_t address : named_) {
    const bool may_lead = near_[block_of(address)] != 0;
    if (small != smalls_named_.end() && small->address == address) {
      const std::uintptr_t base = (small++)->base;
      if (!may_lead) continue;
      if (const auto found = places_.find(base); found != places_.end()) add_known(found->second);
      continue;
    }
    if (!may_lead) continue;
    // The address may lie within a table, too.
    const std::uintptr_t begin = address - std::min(address, kAround), end = address + kAround;
    for (auto at = places_.lower_bound(begin); at != places_.end() && at->first < end; ++at) add_known(at->second);
  }
}

void PointerTables::add_last() {
  for (const Small& small : smalls_named_) {
    for (const Last& last : set_of(small.base)) {
      if (last.base != small.base || last.launch == launch_) continue;
      const Record& record = records_[last.launch % kRecords];
      if (record.launch != last.launch) continue;
      for (const Target& target : record.targets) {
        if (launch_ - target.launch <= window_) targets_.push_back(target);
      }
    }
  }
}

// Keeps each target once, with its youngest naming.
void PointerTables::sort_targets() {
  std::ranges::sort(targets_, [](const Target& a, const Target& b) {
    return a.address != b.address ? a.address < b.address : a.launch > b.launch;
  });
  const auto repeated = std::ranges::unique(targets_, {}, &Target::address);
  targets_.erase(repeated.begin(), repeated.end());
}

// Records the launch for all small allocations that it names.
void PointerTables::remember(bool fills) {
  if (fills) {
    for (const std::uintptr_t target : named_) targets_.push_back({target, launch_});
    sort_targets();
  }
  Record& record = records_[launch_ % kRecords];
  record.launch = remembered_ = launch_;
  record.targets.assign(targets_.begin(), targets_.end());
  for (const Small& small : smalls_named_) {
    auto& set = set_of(small.base);
    auto here = std::ranges::find(set, small.base, &Last::base);
    if (here == set.end()) here = std::ranges::min_element(set, {}, &Last::launch);
    *here = {small.base, launch_};
  }
}

}  // namespace vmem::runtime
