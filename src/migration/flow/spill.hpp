// Writes pages of host memory below it when slots run short, and releases their slots. GPU copies
// and disk transfers never touch a slot at the same time, unless both only read it (slot_at_rest,
// Transfers::busy_below). The mover only.
#pragma once

#include <cstdint>

#include "migration/attempt.hpp"
#include "migration/core.hpp"
#include "migration/flow/displaces.hpp"
#include "migration/page/losses.hpp"
#include "migration/page/transfers.hpp"
#include "migration/place/below.hpp"
#include "migration/place/contents.hpp"
#include "migration/place/devices.hpp"
#include "migration/place/near_slots.hpp"
#include "migration/use/access_gate.hpp"

namespace vmem::migration {

class Spill {
 public:
  struct Parts {
    Core& core;
    const Transfers& transfers;
    const Devices& devices;
    NearSlots& near;
    Below& below;
    Contents& contents;
    Losses& losses;
    AccessGate& gate;
  };
  explicit Spill(const Parts& parts) : parts_(parts) {}

  // Releases host slots. done: some were released. Error: no page in host memory can be spilled.
  Result<Attempt> make_room(std::uint64_t bytes, const SlotWish& wish);
  // Spills before slots are wanted, so that nobody waits for a disk. `largest`: the largest page.
  void ahead(std::uint64_t largest);
  // A transfer between host memory and below has ended.
  void finish(PageRef ref, const InFlight& transfer, const tiers::Completion& completion);

 private:
  struct Spilled {
    std::uint64_t bytes = 0;        // released
    Attempt more = Attempt::never;  // when further slots may come
  };
  Spilled spill_some(std::uint64_t bytes, const SlotWish& wish);
  Spilled spill_one(PageRef ref);
  Spilled submit_store(PageRef ref);
  void store_done(PageRef ref, const InFlight& transfer, const tiers::Completion& completion);
  bool slot_at_rest(PageRef ref) const;
  bool spillable(PageRef ref) const { return ref.page().version != 0 && slot_at_rest(ref); }

  Parts parts_;
};

}  // namespace vmem::migration
