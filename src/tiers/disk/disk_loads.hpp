// Loads of the disk tier: read the slot, and check the page on a worker; or read it straight into a
// frame. All but `post` and the check itself run on the tier's thread.
#pragma once

#include <memory>
#include <optional>

#include "tiers/disk/disk_job.hpp"
#include "tiers/disk/disk_parts.hpp"

namespace vmem::tiers {

class DiskLoads {
 public:
  explicit DiskLoads(const DiskParts& parts) : parts_(parts), staging_(parts.staging_bytes) {}

  // Any thread. REQUIRES: the ledger has begun transfer.id.
  void post(std::unique_ptr<DiskJob> job);

 private:
  using JobPtr = std::unique_ptr<DiskJob>;
  using Failed = std::optional<PageIo::Failure>;

  void start(JobPtr job);
  void read_into_frame(JobPtr job);
  void stage(JobPtr job);
  void read(JobPtr job);
  void on_read(JobPtr job, const Failed& failure);
  void check(JobPtr job);
  static std::unexpected<Error> no_memory(const DiskJob& job);
  void checked(JobPtr job, const Result<PageSealer::Check>& check);
  void disk_failed(JobPtr job, Error error);
  void damaged(JobPtr job);
  void complete(JobPtr job, Outcome outcome, Error error = {});

  const DiskParts parts_;
  StagingLine staging_;  // for compressed pages
};

}  // namespace vmem::tiers
