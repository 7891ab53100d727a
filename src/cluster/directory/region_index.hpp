// The regions and names of the cluster as the registry lists them, and which region has a granule
// of the joint address space.
//
// A reading that is older than what is known already is refused as a whole, so that an erased or a
// handed-over region does not come back.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/log_limit.hpp"
#include "cluster/directory/region_record.hpp"

namespace vmem::cluster::directory {

struct StoredRegion {
  RegionRecord record;
  Revision modified{};
};
struct StoredName {
  NameRecord record;
  Revision modified{};
};

class RegionIndex {
 public:
  struct Changes {
    std::vector<Serial> changed;  // new, too
    std::vector<RegionRecord> erased;
  };

  // False: refused.
  bool take_regions(const Read& read, Revision revision, Changes& changes);
  bool take_names(const Read& read, Revision revision);
  // What a commit or a read of one record has shown. Returns whether it was news.
  bool put(const StoredRegion& region);
  bool erase(Serial serial, Revision revision);

  const StoredRegion* find(Serial serial) const;
  const StoredName* find_name(const std::string& name) const;
  // Whether the name has a record that this version cannot read.
  bool is_unreadable(const std::string& name) const { return unreadable_names_.contains(name); }
  // The region that has the granule, or null.
  const StoredRegion* resolve(std::uint64_t granule) const;
  const std::map<Serial, StoredRegion>& regions() const noexcept { return regions_; }
  const std::map<std::string, StoredName>& names() const noexcept { return names_; }
  Revision regions_at() const noexcept { return regions_at_; }
  Revision names_at() const noexcept { return names_at_; }

 private:
  void insert(const StoredRegion& region);
  void take_out(Serial serial);
  void warn(const Error& error);

  std::map<Serial, StoredRegion> regions_;
  std::map<std::uint64_t, Serial> by_granule_;  // by the first one
  std::map<std::string, StoredName> names_;
  std::set<std::string> unreadable_names_;
  Revision regions_at_{}, names_at_{};
  LogLimit damaged_;
};

}  // namespace vmem::cluster::directory
