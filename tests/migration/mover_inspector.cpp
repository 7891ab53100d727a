// The mover's invariants between two steps.
#include <map>
#include <set>

#include "migration/mover_harness.hpp"

namespace vmem::migration {

template <class Each>
void MoverInspector::each_page(Each&& each) {
  for (const auto* list : std::initializer_list<const std::vector<Region*>*>{&mover.parts().residency.live(),
                                                                             &mover.parts().endings.regions()}) {
    for (Region* region : *list) {
      for (std::uint32_t i = 0; i < region->page_count; ++i) each(*region, region->pages[i], i);
    }
  }
}

void MoverInspector::check(const gpu::Driver& driver, const tiers::Tier* spill, const ScriptedPolicy* policy,
                           bool driver_alive) {
  for (const Region* region : mover.parts().residency.live()) check_region(*region, driver, driver_alive);
  check_frames();
  check_slots();
  check_lending();
  if (spill != nullptr) check_spilled(*spill);
  check_sums();
  if (policy == nullptr) return;
  std::set<PageId> resident;
  for (const Region* region : mover.parts().residency.live()) {
    for (std::uint32_t i = 0; i < region->page_count; ++i) {
      const Page& page = region->pages[i];
      if (page.owns_frame()) resident.insert(region->page_id(i));
    }
  }
  EXPECT_EQ(policy->resident, resident) << "the policy knows which pages are in HBM";
}

void MoverInspector::unmap_all(const gpu::Driver& driver) {
  each_page([&](Region& region, Page&, std::uint32_t index) {
    (void)driver->cuMemUnmap(mover.parts().core.config.space->address_of(region.granule_of(index)),
                             region.page_bytes());
  });
}

void MoverInspector::check_region(const Region& region, const gpu::Driver& driver, bool driver_alive) {
  std::uint32_t unreadable = 0, unwritable = 0, attention = 0;
  for (std::uint32_t i = 0; i < region.page_count; ++i) {
    SCOPED_TRACE(::testing::Message() << "region " << region.id.value << ", page " << i);
    const Page& page = region.pages[i];
    const PageState state(page.state.load());
    unreadable += state.allows(Access::read) ? 0 : 1;
    unwritable += state.allows(Access::write) ? 0 : 1;
    attention += state.has(PageState::kAttention) ? 1 : 0;
    if (!mover.parts().losses.is_unread({const_cast<Region*>(&region), i})) {
      EXPECT_EQ(state.access() == Access::none, page.mapped == Mapped::nothing);
    }
    EXPECT_EQ(state.has(PageState::kPending),
              page.wait != 0 && mover.parts().transfers.running(page.wait) && page.mapped != Mapped::nothing);
    EXPECT_EQ(page.has_frame(), page.frame != kNoFrame);
    if (page.mapped == Mapped::frame) {
      EXPECT_TRUE(page.owns_frame());
    }
    if (page.mapped == Mapped::slot) {
      EXPECT_TRUE(page.slot_current() && page.frame == kNoFrame);
    }
    if (page.standby()) {
      EXPECT_TRUE(page.mapped == Mapped::nothing &&
                  (page.version == 0 || page.slot_current() || page.spilled_current()));
    }
    const bool somewhere = page.frame != kNoFrame || page.slot_current() || page.spilled_current();
    EXPECT_TRUE(page.version == 0 || somewhere || state.has(PageState::kLost)) << "the current version is nowhere";
    if (driver_alive) check_mapping(region, i, driver);
  }
  EXPECT_EQ(region.unreadable.load(), unreadable);
  EXPECT_EQ(region.unwritable.load(), unwritable);
  EXPECT_EQ(region.attention.load(), attention);
}

void MoverInspector::check_mapping(const Region& region, std::uint32_t index, const gpu::Driver& driver) {
  const Page& page = region.pages[index];
  const CUdeviceptr address = mover.parts().core.config.space->address_of(region.granule_of(index));
  for (std::size_t device = 0; device < std::size_t(mover.parts().devices.count()); ++device) {
    const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, {int(device)}};
    unsigned long long flags = 0;
    const CUresult asked = driver->cuMemGetAccess(&flags, &location, address);
    if (page.mapped == Mapped::nothing) {
      EXPECT_NE(asked, CUDA_SUCCESS) << "mapped, and the mover does not know";
      continue;
    }
    ASSERT_EQ(asked, CUDA_SUCCESS) << "not mapped, and the mover thinks it is";
    if ((region.mapping_devices >> device & 1) == 0) continue;
    const bool writes =
        !mover.parts().mapper.write_protected(region) || PageState(page.state.load()).allows(Access::write);
    EXPECT_EQ(flags, writes ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ);
  }
}

void MoverInspector::check_frames() {
  std::vector<std::map<std::uint32_t, int>> owners(std::size_t(mover.parts().devices.count()));
  each_page([&](Region& region, Page& page, std::uint32_t index) {
    if (page.frame == kNoFrame) return;
    ++owners[std::size_t(region.device)][page.frame];
    const tiers::FramePool::Frame& frame = hbm(region.device).frame(page.frame);
    EXPECT_EQ(frame.is_linked(), page.standby()) << "page " << index;
    if (page.standby()) {
      EXPECT_EQ(frame.last_owner, &page) << "page " << index;
    }
  });
  for (const auto& [id, transfer] : mover.parts().transfers) {
    if (transfer.frame != kNoFrame) ++owners[std::size_t(transfer.region->device)][transfer.frame];
  }
  for (std::size_t device = 0; device < std::size_t(mover.parts().devices.count()); ++device) {
    tiers::FramePool& pool = hbm(int(device));
    std::uint64_t existing = 0, in_lists = 0;
    for (std::uint32_t id = 0; id < pool.frame_ids(); ++id) {
      const tiers::FramePool::Frame& frame = pool.frame(id);
      if (frame.handle == 0) continue;
      existing += pool.frame_bytes(id);
      if (frame.is_linked()) in_lists += pool.frame_bytes(id);
      const bool standby = frame.is_linked() && frame.last_owner != nullptr;
      EXPECT_EQ(owners[device][id], !frame.is_linked() || standby ? 1 : 0) << "owners of frame " << id;
    }
    EXPECT_EQ(pool.created_bytes(), existing);
    EXPECT_EQ(pool.free_bytes(), in_lists);
    EXPECT_LE(pool.created_bytes(), pool.budget_bytes());
  }
}

void MoverInspector::check_slots() {
  std::set<std::pair<std::size_t, tiers::SlotId>> slots;
  std::vector<std::uint64_t> bytes(mover.parts().near.count());
  std::uint64_t passing = 0;
  each_page([&](Region& region, Page& page, std::uint32_t index) {
    if (page.slot == kNoFrame) return;
    EXPECT_TRUE(slots.insert({page.near, page.slot}).second) << "slot of page " << index << " belongs to two pages";
    bytes[page.near] += region.page_bytes();
    passing += region.read_only ? region.page_bytes() : 0;
  });
  EXPECT_EQ(mover.parts().near.passing_bytes(NearSlots::Passing::all), passing)
      << "those of read-only regions are known";
  std::uint64_t returning = 0;
  for (const auto& [id, transfer] : mover.parts().transfers) {
    if (transfer.kind != InFlight::Kind::returned) continue;
    EXPECT_TRUE(slots.insert({transfer.from.near, transfer.from.slot}).second) << "given away while it is read";
    bytes[transfer.from.near] += transfer.bytes;
    returning += transfer.bytes;
  }
  EXPECT_EQ(mover.parts().lending.returning_bytes(), returning);
  for (std::size_t near = 0; near < bytes.size(); ++near) {
    EXPECT_EQ(mover.parts().near[near].tier->usage().used_bytes, bytes[near])
        << "slots in use are pages' slots: " << near;
  }
}

// A lending device and its borrowers together stay within the device's budget.
void MoverInspector::check_lending() {
  for (const PeerTier& lent : mover.parts().core.config.peer_tiers) {
    const tiers::TierUsage usage = lent.tier->usage();
    if (!lent.lender) continue;
    const auto& lender = mover.parts().devices[*lent.lender];
    EXPECT_LE(lender.hbm.created_bytes() + usage.held_bytes, lender.config.hbm_bytes);
    EXPECT_LE(usage.budget_bytes, lender.config.hbm_bytes - std::min(lender.config.hbm_bytes, lender.committed_bytes));
  }
}

void MoverInspector::check_spilled(const tiers::Tier& spill) {
  std::set<tiers::SlotId> slots;
  std::uint64_t bytes = 0, down = 0, up = 0;
  each_page([&](Region& region, Page& page, std::uint32_t index) {
    if (page.spilled == nullptr) return;
    if (page.spilled->transfer != 0) {
      ASSERT_TRUE(mover.parts().transfers.running(page.spilled->transfer)) << "page " << index;
      const bool arrives = mover.parts().transfers.at(page.spilled->transfer).frame != kNoFrame;
      EXPECT_TRUE(arrives || (page.slot != kNoFrame && page.mapped != Mapped::slot &&
                              !mover.parts().transfers.running(page.store)))
          << "page " << index;
    }
    if (region.read_only) return;
    if (page.spilled->slot == kNoFrame) {
      EXPECT_EQ(page.spilled->version, 0u) << "page " << index;
      return;
    }
    EXPECT_TRUE(slots.insert(page.spilled->slot).second) << "spilled slot of page " << index << " belongs to two pages";
    bytes += region.page_bytes();
  });
  EXPECT_EQ(spill.usage().used_bytes, bytes) << "spilled slots in use are pages' slots";
  for (const auto& [id, transfer] : mover.parts().transfers) {
    if (transfer.kind == InFlight::Kind::spill || transfer.kind == InFlight::Kind::arrival)
      (transfer.direction == tiers::Direction::store ? down : up) += transfer.bytes;
  }
  EXPECT_EQ(mover.parts().below.storing().total, down);
  EXPECT_EQ(mover.parts().below.loading().total, up);
}

void MoverInspector::check_sums() {
  std::vector<std::uint64_t> committed(std::size_t(mover.parts().devices.count())),
      pinned(std::size_t(mover.parts().devices.count())), loads(std::size_t(mover.parts().devices.count())),
      arriving(std::size_t(mover.parts().devices.count()));
  std::uint64_t allocated = 0, pages = 0;
  for (const auto* list : std::initializer_list<const std::vector<Region*>*>{&mover.parts().residency.live(),
                                                                             &mover.parts().endings.regions()}) {
    for (const Region* region : *list) {
      if (!region->read_only)
        committed[std::size_t(region->device)] += region->extent.committed_pages * region->page_bytes();
      pages += region->page_count;
    }
  }
  for (const Region* region : mover.parts().residency.live())
    allocated += region->has_strangers() || region->read_only ? 0 : region->bytes;
  each_page([&](Region& region, Page& page, std::uint32_t) {
    if (page.pinned || page.kept) pinned[std::size_t(region.device)] += region.page_bytes();
  });
  for (const auto& [id, transfer] : mover.parts().transfers) {
    if (transfer.frame != kNoFrame) arriving[std::size_t(transfer.region->device)] += transfer.bytes;
    const bool load = transfer.direction == tiers::Direction::load && transfer.kind == InFlight::Kind::frame;
    if (load) loads[std::size_t(transfer.region->device)] += transfer.bytes;
    EXPECT_NE(transfer.region->state.load(), RegionState::empty) << "a transfer of a region that is gone";
  }
  std::uint64_t all_committed = 0;
  for (std::size_t i = 0; i < std::size_t(mover.parts().devices.count()); ++i) {
    EXPECT_EQ(mover.parts().devices[int(i)].committed_bytes, committed[i]);
    EXPECT_EQ(mover.parts().devices[int(i)].pinned_bytes, pinned[i]);
    EXPECT_EQ(mover.parts().devices[int(i)].loads_bytes, loads[i]);
    EXPECT_EQ(mover.parts().devices[int(i)].arriving_bytes, arriving[i]);
    all_committed += committed[i];
  }
  EXPECT_EQ(mover.parts().core.counters.committed_bytes, all_committed);
  EXPECT_EQ(mover.parts().core.counters.allocated_bytes, allocated);
  EXPECT_EQ(mover.parts().core.counters.pages, pages);
}

}  // namespace vmem::migration
