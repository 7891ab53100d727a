#include "runtime/pointer_tables.hpp"

#include <algorithm>

namespace vmem::runtime {

std::span<const PointerTables::Target> PointerTables::last_targets(std::uintptr_t table) {
  const Table& entry = entry_of(table);
  const Record& record = records_[entry.launch % kRecords];
  if (entry.base != table || record.launch != entry.launch || entry.launch == launch_) return {};
  return record.targets;
}

PointerTables::Known& PointerTables::known_at(std::uintptr_t table) {
  if (known_.size() >= kKnownMax && !known_.contains(table))
    known_.erase(std::ranges::min_element(known_, {}, [](const auto& entry) { return entry.second.used; }));
  Known& known = known_[table];
  known.used = launch_;
  return known;
}

bool PointerTables::settle(std::uintptr_t table, const Look& look, std::span<const std::uintptr_t> targets,
                           bool whole) {
  const auto found = known_.find(table);
  if (found == known_.end()) return !targets.empty();  // freed since: what was known is forgotten
  Known& known = found->second;
  const auto noted = std::ranges::find(known.looks, &look, &std::shared_ptr<Look>::get);
  if (noted == known.looks.end()) return !targets.empty();  // freed since, and another's
  const std::shared_ptr<Look> kept = std::move(*noted);
  known.looks.erase(noted);
  const bool fresh = std::ranges::any_of(targets, [&](std::uintptr_t each) {
    const auto told = known.targets.find(each);
    return told == known.targets.end() || told->second.first >= look.number;
  });
  const auto add = [&](std::uintptr_t target) { known.tell(target, look.number); };
  if (!whole) {
    std::ranges::for_each(targets, add);
    std::ranges::for_each(look.doubts, add);
  } else if (look.number > known.whole) {  // or a later one saw what there is now
    std::ranges::for_each(targets, add);
    std::erase_if(known.targets, [&](const auto& each) { return each.second.last < look.number; });
    known.whole = look.number;
  }
  if (known.targets.empty() && known.looks.empty()) known_.erase(found);
  return fresh;
}

void PointerTables::believe(std::uintptr_t table, std::span<const std::uintptr_t> targets) {
  Known& known = known_at(table);
  for (const std::uintptr_t target : targets) known.tell(target, looks_);
}

// The youngest naming of each target, for all tables of the launch.
void PointerTables::remember() {
  std::ranges::sort(targets_, [](const Target& a, const Target& b) {
    return a.address != b.address ? a.address < b.address : a.launch > b.launch;
  });
  const auto repeated = std::ranges::unique(targets_, {}, &Target::address);
  targets_.erase(repeated.begin(), repeated.end());
  Record& record = records_[launch_ % kRecords];
  record.launch = launch_;
  record.targets.assign(targets_.begin(), targets_.end());
  for (const Small& small : tables_named_) entry_of(small.base) = {small.base, launch_};
}

}  // namespace vmem::runtime
