// Large readings that clients are fetching piece by piece: kept for a while, so that changes do not
// make a client begin anew. Losing one costs time only. Pure.
#pragma once

#include <list>
#include <string>

#include "cluster/registry/served/sessions.hpp"

namespace vmem::cluster::served {

class ReadPages {
 public:
  explicit ReadPages(std::size_t most_bytes) : most_bytes_(most_bytes) {}

  struct Reading {
    Place place;
    std::string prefix;
    Revision revision{};
    std::string bytes;
  };
  // Null: not kept. Valid until the next call of keep().
  const Reading* find(const Place& place, const std::string& prefix, Revision revision);
  // Drops those that were found or kept longest ago. The returned one stays until the next call.
  const Reading& keep(Reading reading);
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  const std::size_t most_bytes_;
  std::list<Reading> readings_;  // the latest first; never without the latest
  std::size_t bytes_ = 0;
};

}  // namespace vmem::cluster::served
