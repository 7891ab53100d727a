// A node of a simulated cluster as the checks see it, however it is simulated.
#pragma once

#include <cstdint>
#include <string>

#include "cluster/directory/directory.hpp"

namespace vmem::cluster::simulator {

class ObservedNode {
 public:
  virtual ~ObservedNode() = default;

  virtual const std::string& name() const = 0;
  virtual bool is_daemon() const = 0;
  virtual bool running() const = 0;    // or stopped
  virtual bool is_member() const = 0;  // and not fenced; it may be stopped
  virtual bool acts() const = 0;       // a member that is neither fenced nor stopped
  virtual NodeId id() const = 0;       // 0: no member
  // REQUIRES: running()
  virtual const directory::Directory& directory() const = 0;
  virtual bool has(directory::Serial serial, std::uint32_t page) const = 0;
  // It kept the page and has lost it, which its home may not have heard.
  virtual bool has_lost(directory::Serial serial, std::uint32_t page) const = 0;
  // A call that waits for longer than until its deadline and this; null: none does.
  virtual const char* overdue(std::uint64_t slack_us) const = 0;
  // The first thing that was wrong; "": nothing.
  virtual std::string wrong() const = 0;

  // A participant of the region that has it open.
  const directory::Participant* open_part(directory::Serial serial) const {
    const directory::Participant* const part = acts() ? directory().participant(serial) : nullptr;
    return part != nullptr && part->stage() == directory::Participant::Stage::open ? part : nullptr;
  }
};

}  // namespace vmem::cluster::simulator
