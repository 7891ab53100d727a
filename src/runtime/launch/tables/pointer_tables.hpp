// Which allocations a launch may reach without naming them. A kernel given a table of pointers
// names the table; the launch that filled the table named the targets. Batched linear algebra and
// grouped matrix products work that way. Remembered are:
// - known places, where pointers were or may have been seen, each with its targets, until the
//   memory is freed. A table in a small allocation has its place at the allocation's base. A table
//   in a large allocation lies within kAround of a named address;
// - recent launches. A small allocation that a launch named may hold pointers to all that its
//   tables led to, since pointers may have been copied between them. If the launch may fill tables,
//   it may hold pointers to all that the launch named as well. Forgotten `window` launches later.
//
// One object per thread: no locks.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace vmem::runtime {

class PointerTables {
 public:
  // Maximal bytes from a named address to a table that the kernel finds there, and of such a table.
  static constexpr std::uintptr_t kAround = 16 << 10;
  // Maximal bytes of a small allocation.
  static constexpr std::uintptr_t kSmallMax = 1 << 20;

  // A launch begins that names `addresses`, which stay valid until `finish`. `window`: at most
  // 1023; 0 turns the class off.
  void begin(std::uint32_t window, std::span<const std::uintptr_t> addresses) {
    ++launch_;
    window_ = window;
    named_ = addresses;
    smalls_named_.clear();
  }
  // `address`, one of the named, lies in a small allocation. Call in the order of the addresses.
  void name_small(std::uintptr_t address, std::uintptr_t base) { smalls_named_.push_back({address, base}); }
  // All named small allocations were passed. `fills`: the launch may write what it named into small
  // allocations. Calls reach(address) once per address that the tables may lead to, named or not.
  template <class Reach>
  void finish(bool fills, Reach&& reach) {
    if (window_ == 0) return;
    targets_.clear();
    if (!places_.empty()) add_known();
    if (!smalls_named_.empty()) add_last();
    if (!targets_.empty()) {
      sort_targets();
      for (const Target& target : targets_) reach(target.address);
    }
    if (smalls_named_.empty() || (targets_.empty() && !fills)) return;
    remember(fills);
  }

  // True if a launch with these names that fills no table needs begin and finish: a name is near a
  // known place, or a remembered launch is at most `window` calls of begin ago. nullopt: the names
  // are unknown, so any known place counts.
  bool may_matter(std::uint32_t window, const std::optional<std::span<const std::uintptr_t>>& named) const {
    if (window == 0) return false;
    if (remembered_ != 0 && launch_ - remembered_ <= window) return true;
    if (!named) return !places_.empty();
    return std::ranges::any_of(*named, [this](std::uintptr_t address) { return near_[block_of(address)] != 0; });
  }

  // An inspection of tables in progress. Until it ends, they may lead to any of the doubts.
  struct Look {
    std::uint64_t number = 0;
    std::vector<std::uintptr_t> doubts;
    // The last launch to which the doubts were added (once per launch).
    std::uint64_t reached_by = 0;
  };
  std::shared_ptr<Look> begin_look(std::vector<std::uintptr_t> doubts) {
    return std::make_shared<Look>(Look{++looks_, std::move(doubts)});
  }
  void note(std::uintptr_t table, std::shared_ptr<Look> look);
  // At the time of the look, the table's first `bytes` held `targets`; `whole`: and the table held
  // nothing else. Not whole: the doubts are kept as targets, too. Looks may end in any order.
  // Ignored for a table freed since.
  void settle(std::uintptr_t table, const Look& look, std::span<const std::uintptr_t> targets, std::size_t bytes,
              bool whole);
  // Ends the look without a finding: nothing was written, or the caller then calls believe() with
  // the doubts. False: the table was freed since.
  bool drop(std::uintptr_t table, const Look& look);
  // The table may also hold pointers to `targets`; no look will check.
  void believe(std::uintptr_t table, std::span<const std::uintptr_t> targets);
  // The CPU wrote the table's first `bytes`, with `targets` in them.
  void write(std::uintptr_t table, std::span<const std::uintptr_t> targets, std::size_t bytes);
  // Bytes were copied, and tables in them too. For a small allocation: its base, and true; the
  // offset in it does not matter.
  struct Part {
    std::uintptr_t address;
    bool small;
  };
  void copy(Part to, Part from, std::size_t bytes);
  bool any_within(std::uintptr_t begin, std::size_t bytes) const {
    const auto first = places_.lower_bound(begin);
    return first != places_.end() && first->first - begin < bytes;
  }

  // The memory is freed: forgets the tables in it.
  void forget_tables(std::uintptr_t base, std::uint64_t bytes);

 private:
  static constexpr std::uint64_t kRecords = 1024;
  static constexpr std::size_t kSets = 1024, kWays = 4;
  // Most places with targets. Tables that other threads free are never forgotten here, so the least
  // recently used places go.
  static constexpr std::size_t kKnownMax = 1024;
  struct Target {
    std::uintptr_t address;
    std::uint64_t launch;  // the launch that named it
  };
  struct Record {
    std::uint64_t launch = 0;
    std::vector<Target> targets;
  };
  struct Last {
    std::uintptr_t base = 0;
    std::uint64_t launch = 0;  // the last launch that named it
  };
  struct Place {
    // Target → number of the youngest look at which it was known to be there.
    std::map<std::uintptr_t, std::uint64_t> targets;
    std::vector<std::shared_ptr<Look>> looks;
    std::uint64_t whole = 0;  // the youngest look at the whole table
    std::size_t bytes = 0;    // found to be a table
    std::uint64_t used = 0;   // the last launch that named it
  };
  using Places = std::map<std::uintptr_t, Place>;
  struct Small {
    std::uintptr_t address, base;
  };

  // Index into near_.
  std::size_t block_of(std::uintptr_t address) const { return address / kAround % near_.size(); }
  void count_near(std::uintptr_t table, int by);
  std::array<Last, kWays>& set_of(std::uintptr_t base) {
    return lasts_[(base * 0x9e3779b97f4a7c15u) >> 32 & (kSets - 1)];
  }
  Place& place_at(std::uintptr_t table);
  Places::iterator erase(Places::iterator place);
  void erase_if_empty(Places::iterator place);
  void make_room(const Place& newcomer);
  Places::iterator noted(std::uintptr_t table, const Look& look);
  void add_known();
  void add_known(Place& place);
  void add_last();
  void sort_targets();
  void remember(bool fills);

  std::uint64_t launch_ = 0, looks_ = 0;
  std::uint64_t remembered_ = 0;  // the last launch remembered; 0: none
  std::uint32_t window_ = 0;
  std::span<const std::uintptr_t> named_;
  std::vector<Small> smalls_named_;
  std::vector<Target> targets_;
  std::vector<Record> records_{kRecords};
  std::array<std::array<Last, kWays>, kSets> lasts_{};
  Places places_;
  std::size_t known_ = 0;  // places with targets
  // By block: the number of places that an address there may lead to; mostly 0. Blocks far apart
  // share an entry, which only makes a lookup needless.
  std::array<std::uint32_t, 4096> near_{};
};

}  // namespace vmem::runtime
