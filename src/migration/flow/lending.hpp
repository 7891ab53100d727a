// Memory lent by other GPUs: evicted pages go there before host memory. When a lender's own
// allocations reclaim it, pages there move to host memory, or release slots that they do not need.
#pragma once

#include <cstddef>
#include <cstdint>

#include "migration/attempt.hpp"
#include "migration/core.hpp"
#include "migration/flow/host_room.hpp"
#include "migration/flow/unread_pages.hpp"
#include "migration/use/access_gate.hpp"

namespace vmem::migration {

class Lending {
 public:
  struct Parts {
    Core& core;
    Transfers& transfers;
    const Residency& residency;
    Devices& devices;
    NearSlots& near;
    Losses& losses;
    Contents& contents;
    AccessGate& gate;
    UnreadPages& unread;
    HostRoom& host;
  };
  explicit Lending(const Parts& parts) : parts_(parts) {}

  // Splits a device's budget between its own frames and what it lends, after its commitments or the
  // borrowed memory changed.
  void balance(Device& device);
  // Moves pages out of memory that its lender reclaims.
  void return_lent();
  void finish(PageRef ref, std::uint64_t id, const InFlight& transfer, const tiers::Completion& completion);
  bool waits() const { return waits_; }                               // for GPU progress
  std::uint64_t returning_bytes() const { return returning_bytes_; }  // in flight

 private:
  template <class Held, class SetLimit>
  void split_budget(Device& device, std::uint64_t wanted, Held&& held, SetLimit&& set_limit);
  void return_from(std::size_t near, std::uint64_t bytes);
  Result<Attempt> return_page(PageRef ref);
  Status submit(PageRef ref, NearSlot to);
  void return_failed(PageRef ref, const Error& error);

  Parts parts_;
  std::size_t next_region_ = 0;  // where return_from continues
  std::uint32_t next_page_ = 0;
  std::uint64_t returning_bytes_ = 0;
  std::uint64_t failures_ = 0;  // logged at every power of two
  bool waits_ = false;
};

}  // namespace vmem::migration
