// The record "counters/serial": the last serial that was given out, in decimal. Ids of nodes and
// serials of regions come from it, so neither is ever given out twice. It is never erased.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.hpp"
#include "cluster/registry/registry.hpp"

namespace vmem::cluster {

inline constexpr std::string_view kSerialKey = "counters/serial";

struct SerialCounter {
  std::uint64_t last = 0;
  Revision modified{};
};

// From a reading of the key. Errors: INVALID_OPTION if the record is damaged.
Result<SerialCounter> read_counter(const Read& read);
// Makes the commit take `count` serials, the ones after counter.last, or fail. Once a commit for
// some state of the counter was carried out or refused, no other one for that state can be done.
void count_up(const SerialCounter& counter, std::uint64_t count, Commit& commit);
// The counter of a registry that may have lost an earlier one: above all serials of servers that
// started before, as long as none gave out 256 serials a microsecond. `incarnation`: the time of
// the server's start, us since 1970
Edit first_counter(std::uint64_t incarnation);

}  // namespace vmem::cluster
