// What all parts of the mover share: its configuration, its counters, and how it stands with the
// device. Thread: the mover's, except where a comment says otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "gpu/driver.hpp"
#include "migration/journal.hpp"
#include "migration/page/page_ref.hpp"
#include "migration/policy/policy.hpp"
#include "migration/streams.hpp"
#include "pagetable/address_space.hpp"
#include "pagetable/holds.hpp"
#include "tiers/abilities.hpp"
#include "trace/recorder.hpp"
#include "vmem/vmem.h"

namespace vmem::migration {

class Request;

struct MoverDevice {
  CUdevice ordinal = 0;
  CUcontext context = nullptr;
  std::uint64_t hbm_bytes = 0;  // for frames
  std::uint32_t peers = 0;      // bit i: device i can map this device's memory
  // Indices into MoverConfig::peer_tiers that this device can use, best first.
  std::vector<std::uint8_t> lenders;
  // Other GPUs whose engines copy to and from its frames (tiers::NearTier::Device::copier).
  std::vector<CUdevice> copiers;
};

// GPU memory that can hold pages of other devices.
struct PeerTier {
  tiers::Tier* tier = nullptr;
  tiers::InPlaceTier* in_place = nullptr;
  std::uint32_t reached_by = ~0u;  // bit i: device i can map it
  std::function<void(std::uint64_t)> set_budget;
  // Index into MoverConfig::devices, if a device of this process lends: the part of its budget that
  // its own allocations leave, at most `most_bytes`.
  std::optional<int> lender;
  std::uint64_t most_bytes = 0;
  // Lent by another process, which may reclaim it at any time: commitments do not count it.
  bool revocable = false;
};

// Lends other processes the part of a device's budget that its own allocations leave.
struct Loan {
  int lender = 0;  // index into MoverConfig::devices
  std::uint64_t most_bytes = 0;
  std::function<void(std::uint64_t)> set_limit;
  struct InUse {
    std::uint64_t bytes = 0, overdue_bytes = 0;  // overdue: may never be returned
  };
  std::function<InUse()> held;
};

struct MoverConfig {
  std::shared_ptr<const gpu::Driver> driver;
  pagetable::AddressSpace* space = nullptr;
  pagetable::ThreadRegistry* threads = nullptr;
  StreamTable* streams = nullptr;
  tiers::Tier* backing = nullptr;
  tiers::InPlaceTier* in_place = nullptr;  // null: the backing tier cannot be mapped
  // Of the backing tier, created before HBM overflows: see Committer::expect_slots.
  std::optional<std::uint64_t> backing_ahead_bytes = 0;
  std::vector<PeerTier> peer_tiers;  // preferred to host memory for evicted pages
  std::vector<Loan> loans;
  tiers::Tier* spill = nullptr;  // for pages that the backing tier has no room for; null: none
  tiers::Tier* files = nullptr;  // the sources of read-only regions; null: none
  // Most bytes of the backing tier for copies of pages that other nodes published.
  std::uint64_t published_cache_bytes = UINT64_MAX;
  std::unique_ptr<Policy> policy;
  // With `spill`: selects pages to spill. Its one device 0 is the backing tier.
  std::unique_ptr<Policy> spill_policy;
  std::vector<MoverDevice> devices;
  std::optional<std::uint64_t> page_bytes;  // of all regions, if given
  std::uint64_t acquire_wait_us = 100'000;
  // An acquire of a page below host memory, while all host slots are in use, fails after this time
  // without progress.
  std::uint64_t slot_wait_us = 10'000'000;
  // A call fails after waiting this long for a page, or for room, that a disk or node withholds.
  std::uint64_t call_wait_us = 30'000'000;
  // Maps pages acquired for reading read-only, so that a stray write faults. Such a page becomes
  // writable only while unused: changing the access of a mapping under a running kernel, in either
  // direction, is fatal (error 700).
  bool protect = false;
  bool only_asked = false;              // moves pages only on request: no prefetch, no promotion
  bool tries_in_place = false;          // undeclared blocks (policy/in_place_trials.hpp)
  bool shares_pages = false;            // undeclared blocks share pages (runtime/memory/arena.hpp)
  trace::Recorder* recorder = nullptr;  // null: no trace
  std::function<std::uint64_t()> now_us;
  // Set only if the mover has no thread, as in replays. `call` calls it after posting: it has to
  // step the mover until the request is done.
  std::function<void(const Request&)> serve;
};

// The mover's part of vmem_stats: its counters, and allocated_bytes, committed_bytes, pages and
// file_mapped_bytes. The other gauges are 0 here.
struct MoverCounters : vmem_statistics {
  std::uint64_t spill_failures = 0;
  std::uint64_t load_failures = 0;  // of loads from below host memory that left the page there
  std::uint64_t read_to_hbm_failures = 0;
  std::uint64_t published_dropped_pages = 0;  // copies released for their quota
  std::uint64_t published_dropped_bytes = 0;
};

struct Core {
  explicit Core(MoverConfig from) : config(std::move(from)) {}

  MoverConfig config;
  const struct {
    tiers::Abilities backing, spill, files;
  } abilities{tiers::Abilities(config.backing), tiers::Abilities(config.spill), tiers::Abilities(config.files)};
  MoverCounters counters{};
  Journal journal;                     // any thread reads it
  std::optional<Error> lost;           // the device: no call of the driver works any more
  bool worked = false;                 // this step changed something
  std::size_t requests_waiting = 0;    // before the one that is being advanced
  std::uint64_t last_progress_us = 0;  // when work of the GPU or a tier last ended

  std::uint64_t now_us() const { return config.now_us(); }
  CUdeviceptr address_of(PageRef ref) const { return config.space->address_of(ref.begin()); }
  std::uint64_t now_ns() const { return now_us() * 1000; }
  void note(PageRef ref, Happened what);
  // Calls `tell` with the recorder, if a trace is recorded.
  template <class Tell>
  void record(Tell&& tell) const {
    if (config.recorder != nullptr) [[unlikely]]
      tell(*config.recorder);
  }
  void lose_device(const Error& error);
  void eviction_failed(PageRef ref, const Error& error);
  // Calls `tell` with each policy.
  template <class Tell>
  void tell_policies(Tell&& tell) {
    tell(*config.policy);
    if (config.spill_policy) tell(*config.spill_policy);
  }

 private:
  std::uint64_t evict_failures_ = 0;  // logged at every power of two
};

}  // namespace vmem::migration
