// The participants of a region as their home sees them, by place.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "cluster/directory/directory_config.hpp"
#include "cluster/directory/home_pages.hpp"
#include "cluster/directory/region_index.hpp"

namespace vmem::cluster::directory {

class HomeTable {
 public:
  struct Entry {
    RegionRecord::Participant who;
    std::uint64_t leave_by_us = 0;  // 0: does not leave
    bool left = false;              // was told that it may go
    Runs lost;                      // what it was told is lost by that
    std::uint64_t assigned = 0;     // pages that it was asked to keep
  };

  // Takes the record's participants in; returns the places that changed hands or were given up.
  std::vector<std::uint32_t> sync(const RegionRecord& record);
  std::optional<std::uint32_t> find(NodeId node, Session session) const;
  std::optional<std::uint32_t> place_of(NodeId node) const;
  Entry& operator[](std::uint32_t place) { return entries_[place]; }
  const Entry& operator[](std::uint32_t place) const { return entries_[place]; }

  Places all() const noexcept { return all_; }
  Places daemons() const noexcept { return daemons_; }
  Places left() const noexcept { return left_; }
  // Those that get nothing new: they leave, or are asked to.
  Places going(const NodesView& view) const;
  // Those that are to go also where that leaves fewer copies.
  Places forced(const NodesView& view) const;
  // Places of nodes whose membership is over.
  Places over(const NodesView& view, Revision since, NodeId self) const;
  void let_go(std::uint32_t place, Runs lost);

 private:
  std::array<Entry, kMostParticipants> entries_;
  Places all_ = 0, daemons_ = 0, left_ = 0;
};

// Calls each(place) for the places, in order.
template <class Each>
void for_each_place(Places places, Each&& each) {
  for (std::uint32_t place = 0; places >> place != 0; ++place) {
    if ((places & place_bit(place)) != 0) each(place);
    if (place + 1 == kMostParticipants) break;
  }
}

// The daemon that is to keep another copy of a page: with room, not asked to leave, on another rack
// than the keepers if there is one, else on another host; then with the most room. Null: none.
struct PlacementWish {
  std::uint64_t page_bytes = 0;
  std::vector<NodeId> keepers, excluded;
  bool participants_only = false;  // the record has no place for another one
};
const KnownNode* choose_daemon(const NodesView& view, const HomeTable& table, const PlacementWish& wish);
// Whether there are daemons besides the publisher, and none of them was given room for a page: more
// time makes no copy. Without daemons, some may be about to join.
bool no_daemon_takes_copies(const NodesView& view, const RegionRecord& record);

}  // namespace vmem::cluster::directory
