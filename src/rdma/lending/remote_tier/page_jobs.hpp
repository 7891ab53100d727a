// Carries out the stores and loads of pages: a worker seals the page, each copy goes to its node or
// one copy comes from there, a worker checks what came. A copy that fails is tried again, placed
// elsewhere, or given up.
//
// A job that is not complete has work in flight, or waits in a list for a node or for its turn.
//
// Thread: the node's. Locks nothing of its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "rdma/lending/remote_tier/copy_placer.hpp"
#include "rdma/lending/remote_tier/lenders.hpp"
#include "rdma/lending/remote_tier/media_rates.hpp"
#include "rdma/lending/remote_tier/page_job.hpp"
#include "rdma/lending/remote_tier/page_protection.hpp"
#include "rdma/lending/remote_tier/remote_counters.hpp"
#include "rdma/lending/remote_tier/stored_pages.hpp"
#include "tiers/async/transfer_ledger.hpp"
#include "tiers/async/workers.hpp"

namespace vmem::rdma {

class PageJobs {
 public:
  // All outlive this.
  struct Parts {
    Node& node;
    tiers::Workers& workers;
    Lenders& lenders;
    MediaRates& rates;
    CopyPlacer& placer;
    StoredPages& pages;
    PageProtection& protection;
    tiers::TransferLedger& ledger;
    RemoteCounters& counters;
  };
  PageJobs(const RemoteConfig& config, Parts parts) : config_(config), parts_(parts) {}

  void begin(const PageJobRef& job);
  // Resumes the jobs that wait. True: one of them has begun a request.
  bool go_on();
  // Somebody waits now for the page of this load.
  void hurry(std::uint64_t transfer);
  // From now on no job waits for longer than a request may take.
  void hurry_all();
  void clear() {
    waiting_.clear();
    ahead_.clear();
  }

 private:
  using Leg = PageJob::Leg;

  void prepare(const PageJobRef& job);
  void prepared(const PageJobRef& job);
  void wait(const PageJobRef& job);
  bool is_late(const PageJob& job) const;
  std::uint64_t latest_us(const PageJob& job) const { return std::min(job.give_up_us, latest_us_); }

  void advance_store(const PageJobRef& job);
  void finish_store(const PageJobRef& job);
  bool store_copy(const PageJobRef& job, std::size_t copy);
  void put(const PageJobRef& job, std::size_t copy);
  // Without an answer, none will come.
  void put_ended(const PageJobRef& job, std::size_t copy, std::optional<wire::Answer> answer);
  void put_failed(PageJob& job, std::size_t copy, std::optional<wire::Answer> answer);

  struct Choice {
    std::optional<std::size_t> best;  // the copy to fetch
    bool away = false;                // a copy is on a node that is away
  };
  Choice choose(PageJob& job);
  void advance_load(const PageJobRef& job);
  void give_up_load(const PageJobRef& job, const Choice& choice);
  void fetch(const PageJobRef& job, std::size_t copy);
  void fetch_ended(const PageJobRef& job, std::size_t copy, std::optional<wire::Answer> answer);
  void check(const PageJobRef& job, std::size_t copy);
  void checked(const PageJobRef& job, std::size_t copy, bool good);
  void copy_failed(const PageJobRef& job, std::size_t copy, std::string_view why);
  void copy_unread(const PageJobRef& job, std::size_t copy);

  void complete(const PageJobRef& job, tiers::Outcome outcome);
  CopyPlace place_of(const PageJob& job, std::size_t copy) const;
  std::string failure_words(const CopyPlace& at, wire::Answer answer) const;

  const RemoteConfig& config_;
  const Parts parts_;
  std::list<PageJobRef> waiting_;              // for a node, or for their turn
  std::map<std::uint64_t, PageJobRef> ahead_;  // loads that nobody waits for yet, by transfer
  // No job waits beyond this.
  std::uint64_t latest_us_ = std::numeric_limits<std::uint64_t>::max();
};

}  // namespace vmem::rdma
