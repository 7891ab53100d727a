// Loads into HBM that fail after the page was mapped. Work ordered after the load has read wrong
// bytes, which the next call on the page reports. If a copy of the bytes is left, the page is kept,
// and its mapping is withdrawn before the next use.
#pragma once

#include <cstdint>
#include <optional>

#include "migration/core.hpp"
#include "migration/page/losses.hpp"
#include "migration/page/mapper.hpp"
#include "migration/page/transfers.hpp"
#include "migration/place/below.hpp"
#include "migration/place/contents.hpp"
#include "migration/place/devices.hpp"
#include "migration/place/near_slots.hpp"
#include "migration/use/access_gate.hpp"

namespace vmem::migration {

class UnreadPages {
 public:
  struct Parts {
    Core& core;
    const Transfers& transfers;
    Residency& residency;
    const Mapper& mapper;
    Losses& losses;
    Devices& devices;
    NearSlots& near;
    Below& below;
    Contents& contents;
    AccessGate& gate;
  };
  explicit UnreadPages(const Parts& parts) : parts_(parts) {}

  void load_failed(PageRef ref, const tiers::Completion& completion);
  // `good`: the bytes' place, if neither the page's slot nor below.
  void keep(PageRef ref, const Error& error, std::optional<NearSlot> good);
  // The page's bytes are lost here: what its frame and slot have is wrong. It is LOST, unless its
  // region has another source (Below::rescue).
  void lose(PageRef ref, const Error& error);
  // Unmaps the page, if it is one of these. False: it is still in use.
  Result<bool> take_back(PageRef ref, std::uint32_t own_holds);
  // The error of a call on a page that is lost or could not be fetched.
  Error error(PageRef ref, std::uint32_t own_holds);
  // Whether work may have written to the page without a new version.
  bool writes_unsaid(const Region& region) const;

 private:
  Parts parts_;
};

}  // namespace vmem::migration
