// Which allocations a launch may reach without naming them. A kernel that is given a table of pointers names the table; the targets
// were named by the launch that filled it. Batched linear algebra and grouped matrix products work that way. What is remembered:
// - of addresses where pointers were seen, or where somebody is about to look: where they lead, for as long as the memory lives (known
//   tables). Of a small allocation it is its base, however it is named;
// - of small allocations that a launch may have filled, and of those that were named together with a table, since pointers may have been
//   copied from one to the other: what it named, for the next `window` launches of the calling thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace vmem::runtime {

class PointerTables {
 public:
  // A launch begins that names these addresses, which stay there until `finish`. `window`: see above; 0 turns all this off.
  void begin(std::uint32_t window, std::span<const std::uintptr_t> addresses) {
    ++launch_;
    window_ = window < kRecords ? window : kRecords - 1;
    named_ = addresses;
    tables_named_.clear();
  }
  // One of them lies in a small allocation.
  void name_small(std::uintptr_t address, std::uintptr_t base) { tables_named_.push_back({address, base}); }
  // All is named. `fills`: the launch may write what it named into small allocations. Calls reach(address) for what the tables may
  // lead to; some of it several times, or named anyway.
  template <class Reach>
  void finish(bool fills, Reach&& reach) {
    if (window_ == 0) return;
    targets_.clear();
    if (!known_.empty()) {
      const auto add = [&](std::uintptr_t target) {
        reach(target);
        targets_.push_back({target, launch_});
      };
      const auto add_known = [&](std::uintptr_t address) {
        const auto found = known_.find(address);
        if (found == known_.end()) return;
        found->second.used = launch_;
        for (const auto& [target, told] : found->second.targets) add(target);
        for (const auto& look : found->second.looks) {
          if (std::exchange(look->reached, launch_) != launch_) std::ranges::for_each(look->doubts, add);
        }
      };
      for (const std::uintptr_t address : named_) add_known(address);
      for (const Small& small : tables_named_) {
        if (small.base != small.address) add_known(small.base);
      }
    }
    if (tables_named_.empty()) return;
    for (const Small& small : tables_named_) {
      for (const Target& target : last_targets(small.base)) {
        if (launch_ - target.launch > window_) continue;
        reach(target.address);
        targets_.push_back(target);
      }
    }
    if (fills) {
      for (const std::uintptr_t target : named_) targets_.push_back({target, launch_});
    }
    if (!targets_.empty()) remember();
  }

  // What tables hold is being looked at. Until that is over they may lead to any of the doubts.
  struct Look {
    std::uint64_t number = 0;
    std::vector<std::uintptr_t> doubts;
    std::uint64_t reached = 0;  // the last launch that reached the doubts
  };
  std::shared_ptr<Look> begin_look(std::span<const std::uintptr_t> doubts) {
    return std::make_shared<Look>(Look{++looks_, {doubts.begin(), doubts.end()}});
  }
  void note(std::uintptr_t table, std::shared_ptr<Look> look) { known_at(table).looks.push_back(std::move(look)); }
  // When the look was taken the table held these, and nothing else if all of it was looked at. Looks may end in any order. True if there
  // are pointers among them that were not known before; if the table was freed since, any count.
  bool settle(std::uintptr_t table, const Look& look, std::span<const std::uintptr_t> targets, bool whole);
  // The table may hold pointers to these, too, and nobody looks.
  void believe(std::uintptr_t table, std::span<const std::uintptr_t> targets);

  // The allocation is freed: what is there next is no table of what this one led to.
  void forget_tables(std::uintptr_t base, std::uint64_t bytes) {
    if (Table& entry = entry_of(base); entry.base == base) entry = {};
    known_.erase(known_.lower_bound(base), known_.lower_bound(base + bytes));
  }

 private:
  static constexpr std::uint64_t kRecords = 1024;
  static constexpr unsigned kTableBits = 12;
  static constexpr std::size_t kKnownMax = 1024;  // another thread may free them: then nobody says so
  struct Target {
    std::uintptr_t address;
    std::uint64_t launch;  // that named it
  };
  struct Record {
    std::uint64_t launch = 0;
    std::vector<Target> targets;
  };
  struct Table {
    std::uintptr_t base = 0;
    std::uint64_t launch = 0;  // the last that named it
  };
  struct Told {  // the first and the last look that did, or that had begun when it was believed
    std::uint64_t first = 0, last = 0;
  };
  struct Known {
    std::map<std::uintptr_t, Told> targets;
    void tell(std::uintptr_t target, std::uint64_t look) {
      Told& told = targets.try_emplace(target, look, look).first->second;
      told = {std::min(told.first, look), std::max(told.last, look)};
    }
    std::vector<std::shared_ptr<Look>> looks;
    std::uint64_t whole = 0;  // the youngest look at all of it
    std::uint64_t used = 0;   // the last launch that named it
  };
  Table& entry_of(std::uintptr_t table) { return tables_[(table * 0x9e3779b97f4a7c15u) >> (64 - kTableBits)]; }
  std::span<const Target> last_targets(std::uintptr_t table);
  Known& known_at(std::uintptr_t table);
  void remember();

  std::uint64_t launch_ = 0, looks_ = 0;
  std::uint32_t window_ = 0;
  struct Small {
    std::uintptr_t address, base;
  };
  std::span<const std::uintptr_t> named_;
  std::vector<Small> tables_named_;
  std::vector<Target> targets_;
  std::vector<Record> records_{kRecords};
  std::array<Table, 1u << kTableBits> tables_{};
  std::map<std::uintptr_t, Known> known_;  // by address
};

}  // namespace vmem::runtime
