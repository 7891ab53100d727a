// Which allocations a launch may reach without naming them. A kernel that is given a table of pointers names the table; the targets
// were named by the launch that filled it. Batched linear algebra and grouped matrix products work that way. What is remembered:
// - of places where pointers were seen, or may be: where they lead, for as long as the memory lives. A table in a small allocation has its
//   place at the allocation's base, however it is named; one in a large allocation lies within kAround of what is named;
// - of small allocations that a launch may have filled, and of those that were named together with a table, since pointers may have been
//   copied from one to the other: what it named, for the next `window` launches of the calling thread.
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
  // Bytes from an address that a launch names to a table that its kernel may find there; and of such a table.
  static constexpr std::uintptr_t kAround = 16 << 10;
  // And from the base of a small allocation to its end.
  static constexpr std::uintptr_t kSmallMax = 1 << 20;

  // A launch begins that names these addresses, which stay there until `finish`. `window`: see above, at most 1023; 0 turns all this off.
  void begin(std::uint32_t window, std::span<const std::uintptr_t> addresses) {
    ++launch_;
    window_ = window;
    named_ = addresses;
    smalls_named_.clear();
  }
  // One of them lies in a small allocation. In their order.
  void name_small(std::uintptr_t address, std::uintptr_t base) { smalls_named_.push_back({address, base}); }
  // All is named. `fills`: the launch may write what it named into small allocations. Calls reach(address) once for each address that
  // the tables may lead to, named or not.
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

  // Whether a launch that fills no table, and names these, need not be told of: it reaches nothing through a table, and none could have
  // been made of late. Without names: whatever it names.
  bool concern(std::uint32_t window, const std::optional<std::span<const std::uintptr_t>>& named) const {
    if (window == 0) return false;
    if (remembered_ != 0 && launch_ - remembered_ <= window) return true;
    if (!named) return !places_.empty();
    return std::ranges::any_of(*named, [this](std::uintptr_t address) { return near_[block_of(address)] != 0; });
  }

  // What tables hold is being found out. Until that is over they may lead to any of the doubts.
  struct Look {
    std::uint64_t number = 0;
    std::vector<std::uintptr_t> doubts;
    std::uint64_t reached = 0;  // the last launch that reached the doubts
  };
  std::shared_ptr<Look> begin_look(std::vector<std::uintptr_t> doubts) {
    return std::make_shared<Look>(Look{++looks_, std::move(doubts)});
  }
  void note(std::uintptr_t table, std::shared_ptr<Look> look);
  // When the look was taken the table held these in its first `bytes`, and nothing else if that is all of it. Looks may end in any order;
  // of a table that was freed since, this says nothing.
  void settle(std::uintptr_t table, const Look& look, std::span<const std::uintptr_t> targets, std::size_t bytes,
              bool whole);
  // Nothing was written there, or it is believed. False: it was freed since.
  bool drop(std::uintptr_t table, const Look& look);
  // The table may hold pointers to these, too, and nobody looks.
  void believe(std::uintptr_t table, std::span<const std::uintptr_t> targets);
  // The first `bytes` of the table were written from the CPU, with these in them.
  void write(std::uintptr_t table, std::span<const std::uintptr_t> targets, std::size_t bytes);
  // Bytes were copied; tables among them went along. A small allocation stands for all of it: its base, and true.
  struct Part {
    std::uintptr_t address;
    bool small;
  };
  void copy(Part to, Part from, std::size_t bytes);

  // The memory is freed: what is there next is no table of what this one led to.
  void forget_tables(std::uintptr_t base, std::uint64_t bytes);

 private:
  static constexpr std::uint64_t kRecords = 1024;
  static constexpr std::size_t kSets = 1024, kWays = 4;
  static constexpr std::size_t kKnownMax = 1024;  // another thread may free them: then nobody says so
  struct Target {
    std::uintptr_t address;
    std::uint64_t launch;  // that named it
  };
  struct Record {
    std::uint64_t launch = 0;
    std::vector<Target> targets;
  };
  struct Last {
    std::uintptr_t base = 0;
    std::uint64_t launch = 0;  // the last that named it
  };
  struct Place {
    // With the last look that told of them, or had begun when it was believed.
    std::map<std::uintptr_t, std::uint64_t> targets;
    std::vector<std::shared_ptr<Look>> looks;
    std::uint64_t whole = 0;  // the youngest look at all of it
    std::size_t bytes = 0;    // that were found to be a table
    std::uint64_t used = 0;   // the last launch that named it
  };
  using Places = std::map<std::uintptr_t, Place>;
  struct Small {
    std::uintptr_t address, base;
  };

  // How many places there are that an address in the same block may lead to; most launches name none.
  std::size_t block_of(std::uintptr_t address) const { return address / kAround % near_.size(); }
  void count_near(std::uintptr_t table, std::uint32_t by);
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
  std::uint64_t remembered_ = 0;  // the last launch that was; 0: none
  std::uint32_t window_ = 0;
  std::span<const std::uintptr_t> named_;
  std::vector<Small> smalls_named_;
  std::vector<Target> targets_;
  std::vector<Record> records_{kRecords};
  std::array<std::array<Last, kWays>, kSets> lasts_{};
  Places places_;
  std::size_t known_ = 0;                   // places with targets
  std::array<std::uint32_t, 4096> near_{};  // by block
};

}  // namespace vmem::runtime
