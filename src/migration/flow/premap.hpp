// While every page fits: maps allocations in HBM at once, so that launches need not look at their
// arguments (page/residency.hpp).
#pragma once

#include <cstdint>

#include "migration/core.hpp"
#include "migration/flow/hbm_frames.hpp"
#include "migration/flow/loader.hpp"

namespace vmem::migration {

class Premap {
 public:
  Premap(Core& core, const Residency& residency, Devices& devices, HbmFrames& frames, Loader& loader)
      : core_(core), residency_(residency), devices_(devices), frames_(frames), loader_(loader) {}

  // `pages`: new ones of the region. Only undeclared and slabs, and only while HBM stays below the
  // fill at which use tracking begins.
  bool worth_it(const Region& region, std::uint32_t pages) const;
  // Maps new pages of a region, from `mapped` to `end`. True: no more to map. Launches that
  // remember the address may have mapped some between two steps. Ignores errors: they recur, and
  // are reported, for the launch that needs the page.
  bool map_some(Region& region, std::uint32_t& mapped, std::uint32_t end);

 private:
  Core& core_;
  const Residency& residency_;
  Devices& devices_;
  HbmFrames& frames_;
  Loader& loader_;
};

}  // namespace vmem::migration
