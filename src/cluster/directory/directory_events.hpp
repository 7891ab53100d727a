// What a Directory hands to its owner: messages to send, and events.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "cluster/directory/directory_message.hpp"
#include "cluster/enrollment/enrollment_events.hpp"

namespace vmem::cluster::directory {

// Numbers what a participant fetches: a promise not to take late bytes names the last one.
enum class Fetch : std::uint32_t {};

// On an error the region is `published` all the same, with fewer copies than wanted, which the home
// goes on to make; or it is not, and nobody has opened it or will: a record that appears later is
// removed.
struct PublishEnded {
  Ticket ticket{};
  Result<Serial> serial;
  bool published = false;
};
struct OpenEnded {
  Ticket ticket{};
  Result<Serial> serial;
};
// Pages of a want: where to fetch them. The owner calls arrived(), or missing().
struct Answered {
  Ticket ticket{};
  Serial serial{};
  SourceRun run;
  Fetch fetch{};
};
// Every page was answered, or TIMEOUT; LOST if the region is removed.
struct WantEnded {
  Ticket ticket{};
  Status status;
};
// The home wants copies here, which are not to be dropped. The owner fetches them, calls arrived()
// for what came and then kept(), once for each page.
struct KeepWanted {
  Serial serial{};
  Runs pages;
  std::vector<NodeId> sources;
  Term term{};
  std::uint64_t round = 0;
  Fetch fetch{};
};
struct ReleaseAllowed {  // these may be dropped, as cached pages may
  Serial serial{};
  Runs pages;
};
// The region is removed: its addresses are to be unmapped, and it is to be closed.
struct RegionRemoved {
  Serial serial{};
};
// The node takes no part in the region any more; its copies are to be dropped.
struct PartEnded {
  Serial serial{};
};
// From now on this node has nothing of the region. Ticket 0: closed by leave(), or by the home's
// wish. `lost`: pages of which nobody else is known to have a copy. TIMEOUT: the home did not
// answer. LOST: this node's membership ended before others had taken over what it kept.
struct CloseEnded {
  Ticket ticket{};
  Serial serial{};
  Status status;
  Runs lost;
};
struct RemoveEnded {
  Ticket ticket{};
  Status status;
};
struct LeaveEnded {
  Ticket ticket{};
  Status status;
};
// Nobody has the region's addresses mapped, and its record is gone. Its publisher's slice has the
// range again.
struct RangeFreed {
  RegionRecord region;
};
// Said by the home: no participant has these any more.
struct PagesLost {
  Serial serial{};
  Runs pages;
};

using DirectoryEvent =
    std::variant<PublishEnded, OpenEnded, Answered, WantEnded, KeepWanted, ReleaseAllowed, RegionRemoved, PartEnded,
                 CloseEnded, RemoveEnded, LeaveEnded, RangeFreed, PagesLost>;

struct Outgoing {
  NodeId to{};
  Message message;
};
struct Outbox {
  std::vector<Outgoing> messages;
  std::vector<DirectoryEvent> events;
};

}  // namespace vmem::cluster::directory
