// What must hold in a cluster of nodes with directories, by an outside model of who has what:
//
// - A home that the registry names counts only those as keepers who have the page and promised it.
// - A page is LOST only if no member that takes part in the region, and was not let go, has it.
// - Two members never act as home of one region with one term.
// - An address range is given up only if no member has the region open.
// - Every wait ends by its deadline and 1 s.
// - After all faults every page has its copies, and nobody keeps a page unknown to its home.
// - After all faults every record has a home that is a member, lists members only, and is of no
//   removed region; nobody takes part in a region without a record, and every page that somebody
//   has is read by everybody who has the region open.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster/simulator/observed_node.hpp"
#include "cluster/simulator/simulated_registry.hpp"

namespace vmem::cluster::simulator {

class DirectoryChecks {
 public:
  // `pages`: of every region.
  DirectoryChecks(SimulatedRegistry& registry, std::uint32_t pages) : registry_(registry), pages_(pages) {}
  void watch(const ObservedNode& node) { nodes_.push_back(&node); }
  // A region that is to be published, with the pages that were written.
  void expect_region(directory::Serial serial, std::vector<bool> written) { written_[serial] = std::move(written); }

  void check();
  void check_lost(const ObservedNode& at, const directory::PagesLost& lost);
  void check_freed(directory::Serial serial);
  // After all faults, and reads of all pages.
  void check_end();

  bool is_written(directory::Serial serial, std::uint32_t page) const;
  // Whether a member that has the region open has the page.
  bool is_somewhere(directory::Serial serial, std::uint32_t page) const;
  // Regions that the node has open, and where pages can be read.
  std::vector<directory::Serial> open_at(const ObservedNode& node) const;
  // As the registry has them now, or had them at the last check; removed ones are still there.
  const std::map<directory::Serial, directory::RegionRecord>& read_records();
  const std::map<directory::Serial, directory::RegionRecord>& records() const noexcept { return current_; }
  // The node's place among those that are watched; none: no node had the id.
  std::optional<std::uint32_t> owner(NodeId id) const;

  const std::string& wrong() const noexcept { return wrong_; }
  void wrong(const std::string& what);
  template <class... Values>
  void expect(bool right, fmt::format_string<Values...> what, Values&&... values) {
    if (!right) wrong(fmt::format(what, std::forward<Values>(values)...));
  }

  std::uint64_t lost = 0, freed = 0, takeovers = 0;  // so far

 private:
  void check_home(const ObservedNode& node, const directory::HomeDirectory& home);
  void check_keeper(const directory::HomeDirectory& home, std::uint32_t page, std::uint32_t place);
  void check_page(const directory::HomeDirectory& home, std::uint32_t page);
  void check_promises(const directory::HomeDirectory& home, std::uint32_t page);
  void check_copies(const directory::HomeDirectory& home, std::uint32_t page);
  void check_parts();
  bool is_current(const directory::HomeDirectory& home) const;
  const ObservedNode* member(NodeId id) const;

  SimulatedRegistry& registry_;
  const std::uint32_t pages_;
  std::vector<const ObservedNode*> nodes_;
  std::map<NodeId, std::uint32_t> owners_;
  std::map<directory::Serial, std::vector<bool>> written_;
  std::map<directory::Serial, directory::RegionRecord> current_;
  Revision current_at_{};
  std::map<directory::Serial, directory::Term> terms_;
  std::string wrong_;
};

}  // namespace vmem::cluster::simulator
