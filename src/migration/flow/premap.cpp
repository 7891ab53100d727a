#include "migration/flow/premap.hpp"

namespace vmem::migration {

using pagetable::Access;

namespace {

constexpr std::uint32_t kMapsPerStep = 64;  // acquires wait meanwhile

}  // namespace

bool Premap::worth_it(const Region& region, std::uint32_t pages) const {
  const tiers::FramePool& hbm = devices_[region.device].hbm;
  const std::uint64_t untracked = hbm.budget_bytes() - hbm.budget_bytes() / 8;
  const std::uint64_t bytes = pages * region.page_bytes();
  return (region.undeclared || region.slab) && !residency_.tracks() && hbm.used_bytes() + bytes <= untracked;
}

bool Premap::map_some(Region& region, std::uint32_t& mapped, std::uint32_t end) {
  core_.worked = true;
  for (std::uint32_t left = kMapsPerStep; left > 0; --left) {
    if (mapped == end || residency_.tracks()) return true;
    const PageRef ref{&region, mapped++};
    const Page& page = ref.page();
    if (page.mapped != pagetable::Mapped::nothing || page.has_frame() || page.version != 0) continue;
    const auto frame = frames_.take(devices_.of(region), ref.bytes());
    if (!frame || !*frame) return true;
    const auto loaded = loader_.load(ref, **frame, Access::read);
    if (loaded) continue;
    if (loaded.error().status == VMEM_ERROR_DEVICE_LOST) core_.lose_device(loaded.error());
    return true;
  }
  return false;
}

}  // namespace vmem::migration
