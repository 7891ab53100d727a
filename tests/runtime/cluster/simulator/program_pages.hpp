// What a program has of published regions, in place of its mover: all that it published, and what
// it fetched, in host memory. Like a mover it answers a little later, drops cached pages without a
// word, says that a page is gone when it is asked for it, and loads pages that it has lost from
// nodes that have copies.
//
// Unlike MoverPages it has no threads: step() does what is due.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cluster/directory_service.hpp"
#include "runtime/cluster/simulator/page_contents.hpp"
#include "sharing/page_holder.hpp"
#include "sharing/shared_tier.hpp"

namespace vmem::runtime::simulator {

class ProgramPages final : public sharing::PageHolder {
 public:
  using Serial = cluster::directory::Serial;
  using RegionRecord = cluster::directory::RegionRecord;
  struct Setup {
    const Clock& clock;
    const PageContents& contents;
    std::uint64_t patience_us = 0;  // of the tier, for a page
    std::uint64_t seed = 0;
    // A page was read that no node has, in one session.
    std::function<void(Serial, std::uint32_t page)> read_lost;
  };
  explicit ProgramPages(Setup setup) : setup_(std::move(setup)), random_(setup_.seed) {}
  // Both are used from here on, until the regions are forgotten and it is idle.
  void begin(DirectoryService& directory, sharing::SharedTier& tier);
  // Answers nobody any more.
  // Who waits for a page hears that it is not here, as from MoverPages.
  void stop_serving() {
    for (auto& [at_us, lending] : std::exchange(answering_, {}))
      lending.lent(std::unexpected(rdma::wire::Answer::unknown));
  }

  // Regions: its own, or another node's.
  void publish(const RegionRecord& region);
  void open(const RegionRecord& region);
  void forget(Serial serial) { regions_.erase(serial); }
  void forget_all() { regions_.clear(); }

  // Pages of regions that are here.
  void read(Serial serial, std::uint32_t page);
  void evict(Serial serial, std::uint32_t page);
  // Its disk returns other bytes, which it finds out when it reads the page.
  void lose(Serial serial, std::uint32_t page);
  bool has(Serial serial, std::uint32_t page) const;
  bool has_lost(Serial serial, std::uint32_t page) const;

  bool may_read(pagetable::Serial serial, const std::string& tenant) const override;
  void lend(const sharing::SharedPage& page, Lent lent) override;
  bool step();

  bool is_overdue(std::uint64_t slack_us) const;
  bool is_idle() const noexcept { return loading_.empty(); }
  const std::string& wrong() const noexcept { return wrong_; }
  struct Counts {
    std::uint64_t read = 0, lost = 0, failed = 0;
  };
  Counts counts;

 private:
  using Memory = std::shared_ptr<std::vector<std::byte>>;
  struct Region {
    RegionRecord record;
    bool own = false;
    std::shared_ptr<const sharing::RegionKey> key;
    std::shared_ptr<tiers::PageSource> source;
    tiers::SlotId first_slot = 0;
    std::map<std::uint32_t, Memory> pages;
    std::set<std::uint32_t> lost, loading;
  };
  struct Loading {
    cluster::directory::Session session{};
    Serial serial{};
    std::uint32_t page = 0;
    std::uint64_t deadline_us = 0;
    Memory memory;
    std::shared_ptr<tiers::PageSource> source;  // has the transfer's slot
  };
  struct Lending {
    sharing::SharedPage page;
    Lent lent;
  };
  Region& add(const RegionRecord& record, bool own);
  const Region* find(Serial serial) const;
  // 0: the directory does not have the region open.
  cluster::directory::Session session(Serial serial) const;
  void arrived(const tiers::Completion& completion);
  void answer(const sharing::SharedPage& page, Lent& lent);
  void expect(bool right, const std::string& what);

  const Setup setup_;
  std::mt19937_64 random_;
  DirectoryService* directory_ = nullptr;
  sharing::SharedTier* tier_ = nullptr;
  std::map<Serial, Region> regions_;
  std::map<std::uint64_t, Loading> loading_;         // by the transfer's id
  std::multimap<std::uint64_t, Lending> answering_;  // by time
  std::vector<tiers::Completion> completions_;
  std::string wrong_;
};

}  // namespace vmem::runtime::simulator
