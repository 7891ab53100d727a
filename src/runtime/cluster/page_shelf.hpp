// Copies of published regions' pages at a daemon: it fetches and keeps those that a region's home
// asks for, as far as its memory goes, and lends them to other nodes. A copy stays until the home
// releases it, also when all programs that opened the region have ended.
//
// Thread: the node's, but for create and the destructor.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "rdma/node/node.hpp"
#include "runtime/cluster/directory_service.hpp"
#include "sharing/page_holder.hpp"
#include "sharing/region_key.hpp"
#include "sharing/shared_tier.hpp"

namespace vmem::runtime {

class PageShelf final : public rdma::Service, public sharing::PageHolder, public CopyKeeper {
 public:
  struct Config {
    std::uint64_t bytes = 0;  // of copies at most
  };
  struct Usage {
    std::uint64_t pages = 0, bytes = 0;
  };
  // Adds itself to the node. Both outlive this.
  PageShelf(rdma::Node& node, Config config);
  // The directory and the tier are used from here on, until stop().
  void begin(DirectoryService& directory, sharing::SharedTier& tier);
  // Any thread but the node's. Drops all copies, when those that are on their way have ended.
  void stop() { node_.remove(*this); }
  // REQUIRES: it was stopped, and no page is lent.
  ~PageShelf() override = default;
  Usage usage() const;  // any thread; without the pages of regions that have ended

  bool may_read(pagetable::Serial serial, const std::string& tenant) const override;
  void lend(const sharing::SharedPage& page, Lent lent) override;

  void keep(const cluster::directory::KeepWanted& wanted, const cluster::directory::RegionRecord& region) override;
  void release(cluster::directory::Serial serial, const cluster::directory::Runs& pages) override;
  // Its pages stay for some seconds, as far as nothing else needs the memory: a later version may
  // have the same ones.
  void ended(cluster::directory::Serial serial) override;

  std::span<const rdma::wire::Kind> kinds() const override { return {}; }
  bool step() override;
  void quiesce() override;
  bool quiesced() const override { return orders_.empty() && regions_.empty(); }

 private:
  class Budget;
  struct Memory;
  using MemoryRef = std::shared_ptr<const Memory>;
  struct Region {
    std::string tenant;
    std::vector<std::string> readers;
    std::uint64_t page_bytes = 0;
    std::shared_ptr<const sharing::RegionKey> key;
    std::shared_ptr<tiers::PageSource> source;
    tiers::SlotId first_slot = 0;
    std::map<std::uint32_t, MemoryRef> pages;
  };
  struct Retired {
    Region region;
    std::uint64_t until_us = 0;  // later, if it is used
  };
  // What a home has asked for once.
  struct Order {
    cluster::directory::KeepWanted wanted;
    std::size_t left = 0;                 // pages on their way
    std::set<std::uint32_t> unfit, lost;  // without room here, and those that did not come
  };
  struct Coming {
    std::list<Order>::iterator order;
    pagetable::Serial serial{};
    std::uint32_t page = 0;
    std::shared_ptr<Memory> memory;
    std::shared_ptr<tiers::PageSource> source;  // has the transfer's slot
  };

  MemoryRef page_of(const sharing::SharedPage& page, std::shared_ptr<const sharing::RegionKey>& key);
  std::shared_ptr<Memory> make_memory(std::uint64_t bytes);
  using RetiredRef = std::map<pagetable::Serial, Retired>::iterator;
  RetiredRef drop(RetiredRef retired);
  bool drop_idle();
  Region* region_of(const cluster::directory::RegionRecord& record);
  void fetch(std::list<Order>::iterator order, Region& region, std::uint32_t page);
  void arrived(const tiers::Completion& completion);
  void forget(const Coming& coming);
  void settle(std::list<Order>::iterator order);
  void refuse(const Order& order, const std::set<std::uint32_t>& pages, cluster::directory::KeepAnswer why);

  rdma::Node& node_;
  const Config config_;
  const std::shared_ptr<Budget> budget_;
  DirectoryService* directory_ = nullptr;
  sharing::SharedTier* tier_ = nullptr;
  std::map<pagetable::Serial, Region> regions_;
  std::map<pagetable::Serial, Retired> retired_;
  std::atomic<std::uint64_t> retired_pages_ = 0, retired_bytes_ = 0;
  std::list<Order> orders_;
  std::map<std::uint64_t, Coming> coming_;  // by the transfer's id
  std::vector<tiers::Completion> completions_;
  bool stopping_ = false;
};

}  // namespace vmem::runtime
