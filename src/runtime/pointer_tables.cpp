#include "runtime/pointer_tables.hpp"

#include <algorithm>

namespace vmem::runtime {

std::span<const PointerTables::Target> PointerTables::last_targets(std::uintptr_t table) {
  const Table& entry = entry_of(table);
  const Record& record = records_[entry.launch % kRecords];
  if (entry.base != table || record.launch != entry.launch || entry.launch == launch_) return {};
  return record.targets;
}

std::span<const PointerTables::Target> PointerTables::known_targets(std::uintptr_t table) {
  const auto found = known_.find(table);
  if (found == known_.end()) return {};
  found->second.used = launch_;
  return found->second.targets;
}

std::uint64_t PointerTables::note(std::uintptr_t table, std::span<const std::uintptr_t> targets) {
  ++notes_;
  if (known_.size() >= kKnownMax && !known_.contains(table))
    known_.erase(std::ranges::min_element(known_, {}, [](const auto& entry) { return entry.second.used; }));
  Known& known = known_[table];
  known.used = launch_;
  for (const std::uintptr_t target : targets) known.targets.push_back({target, notes_});
  return notes_;
}

bool PointerTables::settle(std::uintptr_t table, std::uint64_t note, std::span<const std::uintptr_t> targets,
                           bool whole) {
  const auto found = known_.find(table);
  if (found == known_.end()) return false;  // freed since
  std::vector<Target>& known = found->second.targets;
  if (whole) std::erase_if(known, [&](const Target& target) { return target.launch == note; });
  const auto held_before = [&](const Target& target) {
    return target.launch < note && std::ranges::find(targets, target.address) != targets.end();
  };
  const auto older = std::size_t(std::ranges::count_if(known, [&](const Target& each) { return each.launch < note; }));
  const std::size_t same = std::erase_if(known, held_before);
  if (whole) std::erase_if(known, [&](const Target& target) { return target.launch < note; });
  for (const std::uintptr_t target : targets) known.push_back({target, note});
  if (known.empty()) known_.erase(found);
  return same != targets.size() || (whole && same != older);
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
