// Requests of this node that wait for a region to be known: to open it, by its name, and to remove
// it, by its serial or its name. Each looks at readings of the registry that were sent after it was
// asked.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/directory/directory_events.hpp"
#include "cluster/directory/home_context.hpp"

namespace vmem::cluster::directory {

struct RegionRequest {
  enum class Kind : std::uint8_t { open, remove };
  Kind kind = Kind::open;
  Ticket ticket{};
  std::string name;
  std::uint64_t asked_us = 0, deadline_us = 0;
  std::uint64_t next_us = 0;  // when a removal is to be asked for again
  Serial serial{};            // of a removal that was asked for
};

class RequestDesk {
 public:
  RequestDesk(const HomeContext& context, const PathTrouble& no_path) : context_(context), no_path_(no_path) {}

  // Ends at once where no region can have the name, or this node is no member.
  void ask(RegionRequest::Kind kind, Ticket ticket, std::string name, std::uint64_t now_us, std::uint64_t deadline_us,
           Outbox& out);
  // Whether somebody waits for its removal.
  bool removes(const RegionRecord& region) const;
  // The home has answered a removal.
  void removed(Serial serial, Outbox& out);
  void refused(Serial serial, Outbox& out);
  void end(const Error& why, Outbox& out);

  // `open` takes the region for a request, or says that it cannot yet.
  using Open = std::function<bool(const RegionRequest&, const RegionRecord&)>;
  bool step(std::uint64_t now_us, std::uint64_t fresh_us, const Open& open, Outbox& out);
  std::uint64_t due_us() const;

 private:
  const StoredRegion* find(const RegionRequest& request) const;
  bool step(RegionRequest& request, std::uint64_t now_us, std::uint64_t fresh_us, const Open& open, Outbox& out);
  bool step_removal(RegionRequest& request, const StoredRegion* region, std::uint64_t now_us, Outbox& out);
  std::optional<Error> refused(const RegionRequest& request, const StoredRegion* region) const;
  Error late(const RegionRequest& request, std::uint64_t fresh_us) const;
  static void fail_request(const RegionRequest& request, const Error& why, Outbox& out);

  const HomeContext& context_;
  const PathTrouble& no_path_;
  std::vector<RegionRequest> requests_;
};

}  // namespace vmem::cluster::directory
