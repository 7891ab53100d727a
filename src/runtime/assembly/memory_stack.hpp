// The tiers other than HBM and peers, as the options name them: host memory, disks, other nodes,
// files.
#pragma once

#include <functional>
#include <memory>

#include "base/clock.hpp"
#include "base/status.hpp"
#include "gpu/driver.hpp"
#include "runtime/assembly/devices.hpp"
#include "runtime/options/options.hpp"
#include "runtime/remote/remote.hpp"
#include "sharing/disk_copies.hpp"
#include "tiers/disk/disk_tier.hpp"
#include "tiers/file/file_tier.hpp"
#include "tiers/io/gds_reader.hpp"
#include "tiers/near_tier.hpp"
#include "tiers/stacked_tier.hpp"
#include "topology/topology.hpp"

namespace vmem::runtime {

class MemoryStack {
 public:
  // `wake` is called on the tiers' threads when a transfer has ended. Errors: INVALID_OPTION,
  // UNSUPPORTED; those of the tiers.
  static Result<std::unique_ptr<MemoryStack>> start(const Options& options, std::shared_ptr<const gpu::Driver> driver,
                                                    const Devices& devices, const topology::Topology& topology,
                                                    std::function<void()> wake);

  tiers::NearTier& host() { return *host_; }
  tiers::FileTier& files() { return *files_; }
  tiers::Tier* below_host();  // null: neither disks nor other nodes
  // Where pages of read-only regions come from: files, then, in a cluster, other nodes.
  tiers::Tier& sources();
  Remote* remote() { return remote_.get(); }  // null: no other nodes
  void add_to(vmem_statistics& out) const;
  // Ends the remote tier. Leaks the tiers with requests that may never end, since the kernel may
  // still write to their memory; false if there are none. Only destruction may follow. REQUIRES:
  // the mover has ended.
  bool quarantine();

 private:
  MemoryStack(const Options& options, std::shared_ptr<const gpu::Driver> driver, std::function<void()> wake)
      : options_(options), driver_(std::move(driver)), wake_(std::move(wake)) {}
  Status start_host(const Devices& devices, const topology::Topology& topology);
  Status start_gds(const Devices& devices);
  Status start_disk();
  Status start_remote();
  void start_copies();
  void start_files();
  tiers::Tier& disks() const;

  const Options& options_;
  const std::shared_ptr<const gpu::Driver> driver_;
  const std::function<void()> wake_;
  const SteadyClock clock_;
  // In the order of use: a later member calls an earlier one.
  std::unique_ptr<tiers::NearTier> host_;
  std::shared_ptr<tiers::GdsReader> gds_;  // unless the option gds is off
  std::unique_ptr<tiers::DiskTier> disk_;  // with the option nvme
  std::unique_ptr<tiers::FileTier> files_;
  std::unique_ptr<Remote> remote_;               // with the option remote
  std::unique_ptr<sharing::DiskCopies> copies_;  // in a cluster, with disks
  std::unique_ptr<tiers::StackedTier> below_;    // with both
  std::unique_ptr<tiers::StackedTier> sources_;  // in a cluster
};

}  // namespace vmem::runtime
