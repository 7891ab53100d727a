// What this program has of published regions, for other nodes: pages in host memory are lent where
// they lie, pages in HBM as copies. What is on a disk, or with a lender, is not loaded for others.
//
// Workers make the calls to the mover, which wait. Thread: any, for all calls.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "migration/mover.hpp"
#include "runtime/assembly/devices.hpp"
#include "sharing/page_holder.hpp"
#include "sharing/region_key.hpp"
#include "tiers/async/workers.hpp"

namespace vmem::runtime {

class MoverPages final : public sharing::PageHolder {
 public:
  struct Parts {
    const Devices& devices;
    migration::Mover& mover;
  };
  struct Config {
    std::uint32_t workers = 2;
    // Copies of pages in HBM at one time; further ones are to be asked for again.
    std::uint64_t most_copied_bytes = std::uint64_t{128} << 20;
  };
  struct Shared {
    pagetable::Region* region = nullptr;  // its pages are only read
    std::uint64_t page_bytes = 0;
    std::shared_ptr<const sharing::RegionKey> key;
    std::string tenant;  // whose nodes may read it
  };

  MoverPages(const Parts& parts, Config config);
  // REQUIRES: no page is lent. Finishes what the workers have begun.
  ~MoverPages() override = default;

  void add(pagetable::Serial serial, Shared shared);
  // Nothing of the region is lent from now on. Returns when none of its pages is lent any more; the
  // region may end then.
  void remove(pagetable::Serial serial);

  bool may_read(pagetable::Serial serial, const std::string& tenant) const override;
  void lend(const sharing::SharedPage& page, Lent lent) override;

 private:
  struct Entry {
    Shared shared;
    std::uint32_t lent = 0;  // pages, those in preparation among them
    bool leaving = false;
  };
  using Answered = std::expected<sharing::LentPage, rdma::wire::Answer>;

  Answered prepare(const sharing::SharedPage& page, const Shared& shared);
  Answered in_host(const sharing::SharedPage& page, const Shared& shared, const std::byte* host);
  Answered in_hbm(const sharing::SharedPage& page, const Shared& shared, CUdeviceptr window);
  Answered sealed(const sharing::SharedPage& page, const Shared& shared, rdma::ConstBytes bytes,
                  std::move_only_function<void()> give_back) const;
  void close(const migration::PageRun& run);
  void returned(pagetable::Serial serial);

  const Parts parts_;
  const Config config_;
  mutable std::mutex mutex_;
  std::condition_variable all_returned_;
  std::map<pagetable::Serial, Entry> regions_;  // protected by mutex_
  std::uint64_t copied_bytes_ = 0;              // protected by mutex_
  tiers::Workers workers_;                      // ends first
};

}  // namespace vmem::runtime
