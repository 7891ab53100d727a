// The mover's parts. Each calls only those declared before it: the lowest comes first.
#pragma once

#include "migration/core.hpp"
#include "migration/flow/ahead.hpp"
#include "migration/flow/bring_in.hpp"
#include "migration/flow/committer.hpp"
#include "migration/flow/direct_reads.hpp"
#include "migration/flow/endings.hpp"
#include "migration/flow/evictor.hpp"
#include "migration/flow/fingerprints.hpp"
#include "migration/flow/frame_finder.hpp"
#include "migration/flow/hbm_frames.hpp"
#include "migration/flow/host_room.hpp"
#include "migration/flow/lending.hpp"
#include "migration/flow/lifting.hpp"
#include "migration/flow/loader.hpp"
#include "migration/flow/page_sizing.hpp"
#include "migration/flow/premap.hpp"
#include "migration/flow/recall.hpp"
#include "migration/flow/spill.hpp"
#include "migration/flow/stuck.hpp"
#include "migration/flow/unread_pages.hpp"
#include "migration/page/losses.hpp"
#include "migration/page/mapper.hpp"
#include "migration/page/pending_pages.hpp"
#include "migration/page/residency.hpp"
#include "migration/page/transfers.hpp"
#include "migration/place/below.hpp"
#include "migration/place/contents.hpp"
#include "migration/place/devices.hpp"
#include "migration/place/near_slots.hpp"
#include "migration/use/access_gate.hpp"
#include "migration/use/in_place_blocks.hpp"
#include "migration/use/promotions.hpp"
#include "migration/use/use_tracker.hpp"

namespace vmem::migration {

struct MoverParts {
  explicit MoverParts(MoverConfig config)
      : core(std::move(config)), residency(core, core.config.only_asked || core.config.protect) {}

  Core core;
  Mapper mapper{core};
  Devices devices{core.config};
  Transfers transfers;
  Residency residency;
  PendingPages pending{transfers, residency};
  Losses losses{core, residency};
  NearSlots near{core, transfers, losses};
  NeedBelow need_below{core};
  Below below{core, transfers, need_below};
  Contents contents{transfers, devices, near, below};
  Promotions promotions{core};
  InPlaceBlocks in_place{core, residency};
  UseTracker uses{core, residency, devices, contents, promotions, in_place, near};
  AccessGate gate{core, transfers, residency, mapper, uses};
  HbmFrames frames{core, transfers, devices, near, uses};
  Fingerprints fingerprints{core, transfers, devices, near, frames};
  Loader loader{{core, transfers, residency, pending, mapper, devices, near, uses, fingerprints, in_place}};
  UnreadPages unread{{core, transfers, residency, mapper, losses, devices, near, below, contents, gate}};
  Spill spill{{core, transfers, devices, near, below, contents, losses, gate}};
  HostRoom host{{core, transfers, devices, near, below, gate, spill}};
  Evictor evictor{{core, transfers, residency, mapper, losses, near, contents, uses, gate, frames, fingerprints, loader,
                   unread, host}};
  FrameFinder finder{{core, devices, near, mapper, frames, fingerprints, evictor}};
  Lifting lifting{{core, transfers, residency, devices, gate, loader, finder}};
  DirectReads direct{{core, transfers, devices, below, contents, fingerprints, finder}};
  Recall recall{{core, transfers, near, below, host, lifting, direct}};
  BringIn bring_in{{core, transfers, residency, pending, mapper, devices, near, below, contents, uses, gate, loader,
                    unread, host, finder, direct, recall}};
  Ahead ahead{{core, transfers, devices, below, uses, gate, promotions, loader, evictor, finder, direct, recall}};
  Lending lending{{core, transfers, residency, devices, near, losses, contents, gate, unread, host}};
  Premap premap{core, residency, devices, frames, loader};
  Stuck stuck{core, transfers, devices, near, below};
  PageSizing sizing{core, devices};
  Committer committer{core, devices, near, below, need_below, lending};
  Endings endings{{core, transfers, residency, pending, mapper, losses, devices, near, below, contents, promotions,
                   in_place, uses, ahead, lending, committer}};
};

}  // namespace vmem::migration
