// Makes pages usable: maps a frame or a slot of near memory at the page's own address, with the
// bytes of the page's copy, if it has one. The mover only.
#pragma once

#include <cstdint>

#include "migration/attempt.hpp"
#include "migration/core.hpp"
#include "migration/flow/direct_reads.hpp"
#include "migration/flow/frame_finder.hpp"
#include "migration/flow/host_room.hpp"
#include "migration/flow/loader.hpp"
#include "migration/flow/recall.hpp"
#include "migration/flow/unread_pages.hpp"
#include "migration/page/pending_pages.hpp"
#include "migration/use/access_gate.hpp"

namespace vmem::migration {

// What a page lacks until it is usable, in a frame or in place. bytes: its bytes are not near the
// GPU, or the CPU uses them (vmem_read, vmem_write). frame: no frame is free yet. access: it is
// mapped for reading only, and a hold or GPU work keeps that mapping.
enum class Lacks : std::uint8_t { nothing, bytes, frame, access };
struct Served {
  Lacks lacks = Lacks::nothing;
  // Lacks::bytes with after_gpu: all host slots are used in place by GPU work.
  Attempt attempt = Attempt::done;
};

// What is done for a frame.
struct Effort {
  bool evict = false;  // evict other pages
  // While a frame may still come: answer after_gpu, do not use the page in place.
  bool wait = false;
  // Unmap a page that is used in place, to move it to HBM.
  bool move_to_hbm = false;
  // While a frame may still come: wait for other users of a page in place, too.
  bool needs_hbm = false;
  // Without a frame: use the page in place. False: answer after_gpu, even if no frame may come.
  bool in_place = true;
};

class BringIn {
 public:
  struct Parts {
    Core& core;
    Transfers& transfers;
    Residency& residency;
    PendingPages& pending;
    Mapper& mapper;
    Devices& devices;
    NearSlots& near;
    Below& below;
    Contents& contents;
    UseTracker& uses;
    AccessGate& gate;
    Loader& loader;
    UnreadPages& unread;
    HostRoom& host;
    FrameFinder& finder;
    DirectReads& direct;
    Recall& recall;
  };
  explicit BringIn(const Parts& parts) : parts_(parts) {}

  // `own_holds`: how many of the page's holds are the caller's own; they do not count.
  Result<Served> serve(PageRef ref, pagetable::Access access, OldBytes old, Effort effort, std::uint32_t own_holds);
  // REQUIRES: unmapped.
  Result<Served> make_usable(PageRef ref, pagetable::Access access, OldBytes old, Effort effort);
  // For a page without a frame: finds a place for bytes that the CPU will write: a slot, or a frame
  // if host memory is full.
  Result<Attempt> place_for_cpu_write(PageRef ref);
  // The error of a call that no longer waits for Lacks::access.
  Error still_read_error(PageRef ref) const;

 private:
  Result<Served> move_to_hbm(PageRef ref, pagetable::Access access, Effort effort, std::uint32_t own_holds);
  Result<Served> bring_near(PageRef ref, Effort effort);
  Result<Served> map_in_place(PageRef ref, pagetable::Access access, OldBytes old);
  Result<bool> upgrade(PageRef ref, std::uint32_t own_holds);

  Parts parts_;
};

}  // namespace vmem::migration
