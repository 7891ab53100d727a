// Finds regions whose home is no member any more and races the other nodes to become their home:
// participants that are daemons first, then other participants, then everybody, so that no record
// stays without a home. One commit wins: it requires that the record is as it was read, that the
// old home's membership is over and that this node's is not.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "cluster/directory/home_context.hpp"
#include "cluster/enrollment/registry_calls.hpp"

namespace vmem::cluster::directory {

class Takeover {
 public:
  // `wants`: the regions to be taken over.
  Takeover(RegistryCalls& calls, const HomeContext& context, std::function<bool(const RegionRecord&)> wants)
      : calls_(calls), context_(context), wants_(std::move(wants)) {}

  // The regions or the nodes have changed.
  void look() { look_ = true; }
  void stop();
  // A region that this node has taken over; after an unsure answer the next reading tells.
  std::optional<StoredRegion> take_won();
  bool take_unsure() { return std::exchange(unsure_, false); }

  bool step(std::uint64_t now_us);
  std::uint64_t due_us() const;

 private:
  void look(std::uint64_t now_us);
  bool is_orphan(const StoredRegion& region) const;
  std::uint64_t wait_us(const RegionRecord& region) const;
  void handle(const Reply& reply);
  bool try_next(std::uint64_t now_us);

  RegistryCalls& calls_;
  const HomeContext& context_;
  const std::function<bool(const RegionRecord&)> wants_;
  bool look_ = false, unsure_ = false;
  std::map<Serial, std::uint64_t> due_us_;
  RegistryCall call_;
  RegionRecord next_;  // as the commit in flight makes it
  std::optional<StoredRegion> won_;
};

}  // namespace vmem::cluster::directory
