// Changes one region's record for its home, by commits that require the record to be as it was last
// read. Edits wait their turn and are made together. A commit without an answer is settled by
// reading; a record with another home or term, or none, ends the desk.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "cluster/directory/directory_config.hpp"
#include "cluster/directory/region_index.hpp"
#include "cluster/enrollment/registry_calls.hpp"

namespace vmem::cluster::directory {

class RecordDesk {
 public:
  using Edit = std::function<void(RegionRecord&)>;  // made again on each attempt

  RecordDesk(RegistryCalls& calls, const DirectoryConfig& config, const Random& random, StoredRegion region)
      : calls_(calls), config_(config), random_(random), region_(std::move(region)) {}

  const RegionRecord& record() const noexcept { return region_.record; }
  Revision modified() const noexcept { return region_.modified; }
  bool busy() const noexcept { return !edits_.empty() || call_.pending(); }

  void change(Edit edit) { edits_.push_back(std::move(edit)); }
  // Erases the record, and the name's if it is given.
  void erase(std::optional<StoredName> name);
  // Compares the record with the registry's, soon.
  void verify() { verify_ = true; }

  // The record names another home, or is gone.
  bool over() const noexcept { return over_; }
  // What the registry was last seen to hold; none: no record, as of the revision.
  const std::optional<StoredRegion>& seen() const noexcept { return seen_; }
  Revision seen_at() const noexcept { return seen_at_; }

  bool step(std::uint64_t now_us);
  std::uint64_t due_us() const noexcept;

 private:
  void post_commit();
  void handle(const Reply& reply, std::uint64_t now_us);
  void read(const Read& read, Revision revision);
  void committed(Revision revision);
  void see(std::optional<StoredRegion> region, Revision revision);

  RegistryCalls& calls_;
  const DirectoryConfig& config_;
  const Random& random_;
  StoredRegion region_;
  RegistryCall call_;
  std::vector<Edit> edits_;
  std::size_t posted_ = 0;  // edits in the commit in flight
  RegionRecord next_;
  bool erasing_ = false, verify_ = false, over_ = false;
  std::optional<StoredName> name_;
  std::uint64_t due_us_ = 0;
  std::optional<StoredRegion> seen_;
  Revision seen_at_{};
};

}  // namespace vmem::cluster::directory
