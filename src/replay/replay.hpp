// Plays a recorded program again, in virtual time, with the mover, the policy and the allocator as
// they are: what a run would take with so much HBM and such a link.
#pragma once

#include <cstdint>
#include <optional>

#include "base/status.hpp"
#include "replay/virtual_gpu.hpp"
#include "trace/file.hpp"

namespace vmem::replay {

// The tiers below HBM, from near to far.
struct Chain {
  std::uint64_t peer_bytes = 0;  // another GPU's memory, all of it lent
  LinkRates peer_link = kNvLink;
  std::uint64_t host_bytes = std::uint64_t{256} << 30;
  LinkRates link;                 // between HBM and host memory
  std::uint64_t below_bytes = 0;  // a disk, or another node
  std::uint64_t below_in_bytes_per_s = 3'500'000'000, below_out_bytes_per_s = 2'500'000'000;
};

struct Setting {
  std::uint64_t hbm_bytes = 0;
  Chain chain;
  std::optional<std::uint64_t> page_bytes;  // nullopt: as the runtime chooses
  bool share_pages = true;
  bool try_in_place = true;
  std::uint64_t pinned_bytes_per_s = 5'800'000'000;  // how fast host memory is pinned
  CallCosts costs;
  std::uint64_t from_ns = 0;  // of the trace: what is measured begins here
  bool look_ahead = true;     // false: only by the policy behind it (second chance)
  // Filled with what was busy during the measured part, in the replay's own time. Null: not wanted.
  Timeline* timeline = nullptr;
};

// From the end of the work that was queued before `from_ns` to the end of the last launch.
struct Measured {
  std::uint64_t time_ns = 0;
  std::uint64_t gpu_ns = 0;     // of the busiest stream's work, with what it read in host memory
  std::uint64_t waited_ns = 0;  // launching threads, for the mover
  std::uint64_t waits = 0;
  std::uint64_t in_bytes = 0, out_bytes = 0;      // of HBM
  std::uint64_t in_busy_ns = 0, out_busy_ns = 0;  // of the link to host memory
  std::uint64_t peer_in_busy_ns = 0, peer_out_busy_ns = 0;
  std::uint64_t below_in_bytes = 0, below_out_bytes = 0;  // between host memory and what is below
  std::uint64_t below_in_busy_ns = 0, below_out_busy_ns = 0;
  std::uint64_t ahead_bytes = 0;  // of in_bytes: fetched before a launch asked
  std::uint64_t maps = 0, unmaps = 0, frames_made = 0;
  std::uint64_t mover_busy_ns = 0;
  std::uint64_t launches = 0;
  std::uint64_t wrong_loads = 0;  // in the whole replay; not 0: a bug of the mover
};

// What a trace does not say is assumed: docs/internals/trace.md lists it.
// A launch that needs more than HBM uses some of it in host memory, as in a run.
// Errors: INVALID_VALUE (several devices, a program that calls vmem, no launch after from_ns, too
// little HBM for the page size or beside small allocations); those of the runtime.
Result<Measured> replay(const trace::Trace& trace, const Setting& setting);

}  // namespace vmem::replay
