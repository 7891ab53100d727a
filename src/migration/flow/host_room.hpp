// Finds slots of near memory for pages. If host memory is full, in this order: releases copies of
// other nodes' pages, and slots of pages of files that nobody waits for; releases second copies of
// resident pages; spills pages. For a page that has no other place it then releases copies that
// VMEM_ADVISE_READ_MOSTLY asks to keep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "migration/attempt.hpp"
#include "migration/core.hpp"
#include "migration/flow/displaces.hpp"
#include "migration/flow/spill.hpp"
#include "migration/page/transfers.hpp"
#include "migration/place/below.hpp"
#include "migration/place/devices.hpp"
#include "migration/place/near_slots.hpp"
#include "migration/use/access_gate.hpp"

namespace vmem::migration {

// A slot of host memory; or when to look again; or host memory is full, and `full` says what fills
// it.
struct HostSlot {
  Attempt attempt = Attempt::never;
  std::optional<NearSlot> place;  // done
  std::optional<Error> full;      // never

  static HostSlot found(tiers::SlotId slot) { return {Attempt::done, NearSlot{0, slot}, {}}; }
  static HostSlot later(Attempt why) { return {why, {}, {}}; }
};

class HostRoom {
 public:
  struct Parts {
    Core& core;
    const Transfers& transfers;
    const Devices& devices;
    NearSlots& near;
    Below& below;
    AccessGate& gate;
    Spill& spill;
  };
  explicit HostRoom(const Parts& parts) : parts_(parts) {}

  // done: the page has a slot. Errors: OUT_OF_MEMORY; the tiers'.
  Result<Attempt> need_slot(PageRef ref, const SlotWish& wish = {});
  Result<HostSlot> find(PageRef ref, const SlotWish& wish);
  // Gives the page the slot. REQUIRES: it has none.
  void settle(PageRef ref, NearSlot place);
  // Whether a page of a file that is read ahead may take a host slot. To make room, releases slots
  // that nobody waits for.
  bool room_to_pass(std::uint64_t page_bytes);
  // Releases copies of other nodes' published pages until, with `more` bytes, they are within their
  // quota. Copies in use stay; so do pages that are loaded, or read ahead and not used yet. Within
  // the quota it costs a comparison. `excluded`: see SlotWish.
  void hold_quota(std::uint64_t more = 0, const Page* excluded = nullptr);
  // Call hold_quota again: the copies that exceed the quota were in use.
  bool over_quota() const { return parts_.near.copies().excess() != 0 && !parts_.near.copies().candidates().empty(); }
  // While it lives, slots are found for requests: what they wait for goes first.
  class ForRequests {
   public:
    explicit ForRequests(HostRoom& host) : host_(host) {
      host_.for_requests_ = true;
      host_.awaited_bytes_ = 0;
    }
    ~ForRequests() { host_.for_requests_ = false; }
    ForRequests(const ForRequests&) = delete;
    ForRequests& operator=(const ForRequests&) = delete;

   private:
    HostRoom& host_;
  };
  void note_waiting(PageRef ref, Displaces displaces);

 private:
  struct LentSlot {
    tiers::SlotGrant grant;
    Attempt otherwise = Attempt::never;  // without a slot: when one can be released
  };
  Result<LentSlot> allocate_lent(std::size_t near, std::uint64_t page_bytes);
  Result<HostSlot> look_for(PageRef ref, const SlotWish& wish);
  Result<HostSlot> displace(PageRef ref, const SlotWish& wish, Attempt passing);
  bool awaited(Displaces displaces) const { return for_requests_ && displaces != Displaces::unwanted; }
  bool leaves_room_for_files(PageRef ref) const;
  NearSlots::Released release_passing(std::uint64_t bytes, const SlotWish& wish);
  void release_passing(std::uint64_t bytes, const SlotWish& wish, NearSlots::Released& released);
  void release_copies(std::uint64_t bytes, const SlotWish& wish, std::size_t most, NearSlots::Released& released);
  bool release_one(PageRef ref, const SlotWish& wish, NearSlots::Released& released);

  Parts parts_;
  bool for_requests_ = false;
  std::uint64_t awaited_bytes_ = 0;  // largest page for which a request waits for a host slot
};

}  // namespace vmem::migration
