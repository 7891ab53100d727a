#include "runtime/pointer_tables.hpp"

#include <algorithm>

namespace vmem::runtime {

std::span<const PointerTables::Target> PointerTables::last_targets(std::uintptr_t table) {
  const Table& entry = entry_of(table);
  const Record& record = records_[entry.launch % kRecords];
  if (entry.base != table || record.launch != entry.launch || entry.launch == launch_) return {};
  return record.targets;
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
  for (const std::uintptr_t table : tables_named_) entry_of(table) = {table, launch_};
}

}  // namespace vmem::runtime
