#include "cluster/directory/region_index.hpp"

#include <set>
#include <utility>

#include "base/log.hpp"

namespace vmem::cluster::directory {

void RegionIndex::warn(const Error& error) {
  if (const auto occurrence = damaged_.next(); occurrence.logged)
    VMEM_LOG_WARN("{}; the record is skipped ({} such readings)", error.message, occurrence.count);
}

void RegionIndex::insert(const StoredRegion& region) {
  regions_.insert_or_assign(region.record.serial, region);
  by_granule_.insert_or_assign(region.record.first_granule, region.record.serial);
}

void RegionIndex::take_out(Serial serial) {
  const auto found = regions_.find(serial);
  if (found == regions_.end()) return;
  const auto place = by_granule_.find(found->second.record.first_granule);
  if (place != by_granule_.end() && place->second == serial) by_granule_.erase(place);
  regions_.erase(found);
}

bool RegionIndex::take_regions(const Read& read, Revision revision, Changes& changes) {
  if (revision < regions_at_) return false;
  regions_at_ = revision;
  std::set<Serial> listed;
  for (const Record& record : read.records) {
    const std::optional<Serial> serial = serial_in_key(record.key);
    if (!serial) continue;
    listed.insert(*serial);
    const StoredRegion* const known = find(*serial);
    if (known != nullptr && known->modified >= record.modified) continue;
    Result<RegionRecord> region = parse_region(record.key, record.value);
    if (!region) {
      warn(region.error());
      continue;
    }
    insert({.record = *std::move(region), .modified = record.modified});
    changes.changed.push_back(*serial);
  }
  for (const auto& [serial, region] : regions_)
    if (!listed.contains(serial)) changes.erased.push_back(region.record);
  for (const RegionRecord& region : changes.erased) take_out(region.serial);
  return true;
}

bool RegionIndex::take_names(const Read& read, Revision revision) {
  if (revision < names_at_) return false;
  names_at_ = revision;
  std::map<std::string, StoredName> names;
  unreadable_names_.clear();
  for (const Record& record : read.records) {
    const std::string name = record.key.substr(kNamesPrefix.size());
    Result<NameRecord> parsed = parse_name(record.key, record.value);
    if (!parsed) {
      warn(parsed.error());
      unreadable_names_.insert(name);
    } else {
      names.emplace(name, StoredName{.record = *std::move(parsed), .modified = record.modified});
    }
  }
  names_ = std::move(names);
  return true;
}

bool RegionIndex::put(const StoredRegion& region) {
  const StoredRegion* const known = find(region.record.serial);
  if (known != nullptr && known->modified >= region.modified) return false;
  if (known == nullptr && region.modified < regions_at_) return false;  // erased since
  regions_at_ = std::max(regions_at_, region.modified);
  insert(region);
  return true;
}

bool RegionIndex::erase(Serial serial, Revision revision) {
  const StoredRegion* const known = find(serial);
  if (known == nullptr || known->modified > revision) return false;
  regions_at_ = std::max(regions_at_, revision);
  take_out(serial);
  return true;
}

const StoredRegion* RegionIndex::find(Serial serial) const {
  const auto found = regions_.find(serial);
  return found == regions_.end() ? nullptr : &found->second;
}

const StoredName* RegionIndex::find_name(const std::string& name) const {
  const auto found = names_.find(name);
  return found == names_.end() ? nullptr : &found->second;
}

const StoredRegion* RegionIndex::resolve(std::uint64_t granule) const {
  const auto after = by_granule_.upper_bound(granule);
  if (after == by_granule_.begin()) return nullptr;
  const StoredRegion* const region = find(std::prev(after)->second);
  const bool inside = region != nullptr && granule - region->record.first_granule < region->record.granules;
  return inside ? region : nullptr;
}

}  // namespace vmem::cluster::directory
