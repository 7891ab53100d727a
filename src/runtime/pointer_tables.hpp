// Which allocations a launch may reach without naming them. A kernel that is given a table of pointers names the table; the targets
// were named by the launch that filled it. Batched linear algebra and grouped matrix products work that way. So it is remembered, for
// the calling thread's last launches, which small allocations were filled by a launch that writes pointers, and what that launch
// named; what is written by a launch that was given such a table may be one, too.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace vmem::runtime {

class PointerTables {
 public:
  // A launch begins. `window`: how many launches back a table may have been filled; 0 turns this off.
  void begin(std::uint32_t window) {
    ++launch_;
    window_ = window < kRecords ? window : kRecords - 1;
    tables_named_.clear();
    targets_named_.clear();
  }
  void name_table(std::uintptr_t base) { tables_named_.push_back(base); }
  void name_target(std::uintptr_t address) { targets_named_.push_back(address); }
  // All is named. `fills`: the launch may write what it named into the tables. Calls reach(address) for what the tables may lead
  // to; some of it several times, or named anyway.
  template <class Reach>
  void finish(bool fills, Reach&& reach) {
    if (window_ == 0 || tables_named_.empty()) return;
    targets_.clear();
    for (const std::uintptr_t table : tables_named_) {
      for (const Target& target : last_targets(table)) {
        if (launch_ - target.launch > window_) continue;
        reach(target.address);
        targets_.push_back(target);
      }
    }
    if (fills) {
      for (const std::uintptr_t target : targets_named_) targets_.push_back({target, launch_});
    }
    if (!targets_.empty()) remember();
  }

  // The allocation is freed: what is there next is no table of what this one led to.
  void forget_table(std::uintptr_t base) {
    if (Table& entry = entry_of(base); entry.base == base) entry = {};
  }

 private:
  static constexpr std::uint64_t kRecords = 1024;
  static constexpr unsigned kTableBits = 12;
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
  Table& entry_of(std::uintptr_t table) { return tables_[(table * 0x9e3779b97f4a7c15u) >> (64 - kTableBits)]; }
  std::span<const Target> last_targets(std::uintptr_t table);
  void remember();

  std::uint64_t launch_ = 0;
  std::uint32_t window_ = 0;
  std::vector<std::uintptr_t> tables_named_, targets_named_;
  std::vector<Target> targets_;
  std::vector<Record> records_{kRecords};
  std::array<Table, 1u << kTableBits> tables_{};
};

}  // namespace vmem::runtime
