// Stores of the disk tier: seal and compress the page on a worker, allocate its space again where
// the slot has a hole, write, and give back what a compressed page leaves free where space is
// short. All on the tier's thread but `post` and `conditions`.
#pragma once

#include <memory>
#include <optional>

#include "tiers/disk/disk_job.hpp"
#include "tiers/disk/disk_parts.hpp"

namespace vmem::tiers {

class DiskStores {
 public:
  explicit DiskStores(const DiskParts& parts) : parts_(parts), staging_(parts.staging_bytes) {}

  // Any thread. REQUIRES: the ledger has begun transfer.id.
  void post(std::unique_ptr<StoreJob> job);

 private:
  using JobPtr = std::unique_ptr<StoreJob>;

  void start(JobPtr job);
  void seal(JobPtr job);
  PageSealer::Conditions conditions(const StoreJob& job) const;
  void sealed(JobPtr job, Workers::Ended how);
  void fill_hole(JobPtr job);
  void filled(JobPtr job, Status status);
  DiskSpace::Then then_on_thread(JobPtr job, void (DiskStores::*next)(JobPtr, Status));
  void begin_write(JobPtr job);
  void write(JobPtr job);
  void write_ended(JobPtr job, const std::optional<PageIo::Failure>& failure);
  bool worth_punching(const StoreJob& job) const;
  void punch(JobPtr job);
  void punched(JobPtr job, Status status);
  void give_up_staging(StoreJob& job);
  void done(JobPtr job);
  void failed(JobPtr job, Error error);
  void complete(JobPtr job, Completion completion);

  const DiskParts parts_;
  StagingLine staging_;
};

}  // namespace vmem::tiers
