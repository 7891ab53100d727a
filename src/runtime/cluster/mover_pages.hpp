// What this program has of published regions, for other nodes: pages in HBM and in host memory. The
// mover keeps a page where it is while it is open.
//
//   lend → open ┬ in host memory: prove → lent → given back → close
//               ├ in HBM, or in part, with room: copy → close → prove → lent → given back
//               ├ in HBM, or in part, without room: close → wait for room → open
//               └ not here, never written, or unreadable: refused
//
// A page that this program published is loaded from its disk or lender for a reader. A page that
// another node published is refused if it is not here: the reader asks the nodes that have it.
// Opening and closing are requests to the mover that nobody waits for. Threads of this class copy,
// prove and answer. So neither the node's thread nor the mover's waits, and the mover's thread
// allocates nothing here, except to say that a page is gone.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/log_limit.hpp"
#include "migration/mover.hpp"
#include "runtime/assembly/devices.hpp"
#include "runtime/cluster/pinned_staging.hpp"
#include "sharing/page_holder.hpp"
#include "sharing/region_key.hpp"

namespace vmem::runtime {

// Any thread, except where a comment says otherwise.
class MoverPages final : public sharing::PageHolder {
 public:
  struct Parts {  // all outlive this
    const Devices& devices;
    migration::Mover& mover;
  };
  struct Config {
    std::uint32_t workers = 2;                              // at least 1
    std::uint64_t staging_bytes = std::uint64_t{64} << 20;  // most bytes of copies at a time
    std::size_t most_waiting = 1000;                        // pages, for room for a copy
    // Then who asked is to ask again: within the time that it waits for an answer.
    std::uint64_t most_wait_us = 1'000'000;
    // Told of pages that were to be lent, and are lost or not here, before the mover begins to load
    // them. Neither waits nor throws anything but std::bad_alloc. The mover's thread.
    std::function<void(const sharing::SharedPage&)> gone = {};
  };
  // A region that nobody writes to any more: its own frozen, or another node's opened here.
  struct Shared {
    pagetable::Region* region = nullptr;
    std::shared_ptr<const sharing::RegionKey> key;
    std::string tenant;                     // whose nodes may read it
    std::vector<std::string> readers = {};  // other tenants whose nodes may
  };

  MoverPages(const Parts& parts, Config config);
  // REQUIRES: no page is lent any more. Waits for requests in flight.
  ~MoverPages() override;
  MoverPages(const MoverPages&) = delete;
  MoverPages& operator=(const MoverPages&) = delete;

  // `serial`: the cluster's. REQUIRES: it was not added, or was removed since; the region lives
  // until remove has returned.
  void add(pagetable::Serial serial, Shared region);
  // From now on requests hear that its pages are not here. Returns when no request uses the
  // region's memory any more; pages lent as copies need not be given back for it. Not the node's
  // thread, which gives pages back, nor the mover's.
  void remove(pagetable::Serial serial);

  bool may_read(pagetable::Serial serial, const std::string& tenant) const override;
  void lend(const sharing::SharedPage& page, Lent lent) override;

 private:
  struct Published;
  struct Job;
  using JobPtr = std::unique_ptr<Job>;
  class Loan;
  // In order. Allocates nothing.
  class Line {
   public:
    Line() = default;
    ~Line();
    Line(const Line&) = delete;
    Line& operator=(const Line&) = delete;
    bool empty() const { return first_ == nullptr; }
    std::size_t size() const { return size_; }
    const Job& front() const { return *first_; }
    void push(JobPtr job) noexcept;
    JobPtr pop() noexcept;
    // Moves the jobs of the region to `to`.
    void extract(const Published& region, Line& to) noexcept;

   private:
    JobPtr first_;
    Job* last_ = nullptr;
    std::size_t size_ = 0;
  };

  std::shared_ptr<Published> find(const sharing::SharedPage& page);
  void open(JobPtr job) noexcept;
  void opened(JobPtr job) noexcept;
  void close(JobPtr job) noexcept;
  void closed(JobPtr job) noexcept;
  bool take_room(Job& job) noexcept;
  void wait_for_room(JobPtr job) noexcept;
  void give_up_room(Job& job) noexcept;
  void serve_waiting() noexcept;
  void refuse_late() noexcept;
  void leave_region(Job& job) noexcept;
  void post(JobPtr job) noexcept;
  void given_back(JobPtr job) noexcept;
  void end(JobPtr job) noexcept;

  void run();
  void stop() noexcept;
  void work_on(JobPtr job);
  void copy(JobPtr job);
  void prove(JobPtr job);
  void refuse(JobPtr job);
  Status copy_out(Job& job);

  const Parts parts_;
  const Config config_;
  PinnedStaging staging_;
  LogLimit uncopied_;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable wanted_, settled_;
  std::map<pagetable::Serial, std::shared_ptr<Published>> regions_;
  Line posted_;   // for the workers
  Line waiting_;  // for room for a copy; no page of them is open
  std::size_t jobs_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace vmem::runtime
