// What the threads of a process ask of its part in the directory of published regions. Each call
// has two forms: one ends in a callback, the other waits.
//
// Threads: any; any but the node's, for the form that waits.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "cluster/directory/directory.hpp"

namespace vmem::runtime {

class DirectoryCalls {
 public:
  using Serial = cluster::directory::Serial;
  using Publication = cluster::directory::Directory::Publication;
  using RegionRecord = cluster::directory::RegionRecord;
  using Runs = cluster::directory::Runs;
  struct Published {
    bool done = false;  // nodes may have it open, also on an error
    Status status;
  };
  virtual ~DirectoryCalls() = default;

  // Called once, on the node's thread: at most wait_us after the call, or when the directory ends.
  // Errors: those of the directory; TIMEOUT; NOT_INITIALIZED; of close LOST instead, where pages
  // may be lost.
  template <class Value>
  using Done = std::move_only_function<void(Value)>;
  virtual void publish(Publication what, std::uint64_t wait_us, Done<Published> done) = 0;
  virtual void open(const std::string& name, std::uint64_t wait_us, Done<Result<RegionRecord>> done) = 0;
  // The pages of which nobody else is known to have a copy.
  virtual void close(Serial serial, std::uint64_t wait_us, Done<Result<Runs>> done) = 0;
  // Of the version that has the name at present.
  virtual void remove(const std::string& name, std::uint64_t wait_us, Done<Status> done) = 0;
  // Closes all regions here, and has other nodes take over what this one is home of.
  virtual void leave(std::uint64_t wait_us, Done<Status> done) = 0;

  // The same calls. Each waits for at most wait_us, and a little.
  Published publish(Publication what, std::uint64_t wait_us);
  Result<RegionRecord> open(const std::string& name, std::uint64_t wait_us);
  Result<Runs> close(Serial serial, std::uint64_t wait_us);
  Status remove(const std::string& name, std::uint64_t wait_us);
  Status leave(std::uint64_t wait_us);
};

}  // namespace vmem::runtime
