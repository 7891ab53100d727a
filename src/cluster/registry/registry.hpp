// The interface between vmem and the registry: the small records that all nodes of a cluster share,
// such as who is there, which names exist and who owns which part of the address space. A record is
// a key and a value. Keys are paths below the cluster's own prefix: "nodes/7". Nothing per page is
// kept here.
//
// All changes are totally ordered; a read sees every change that was acknowledged before it was
// posted. A record put under a lease is erased when the lease ends: by request, or because it was
// not renewed in time.
//
// Asynchronous: post() returns at once, and each request ends in exactly one Reply. Requests may be
// carried out, and replies come, in any order.
//
// Threads: one thread, the owner's, makes all calls. An implementation with threads of its own gets
// a callback in its configuration and calls it, without a lock held, when poll() has replies.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/status.hpp"

namespace vmem::cluster {

enum class LeaseId : std::int64_t {};  // 0: none
// Counts changes of the registry as a whole; only grows. 0: none
enum class Revision : std::int64_t {};

struct Record {
  std::string key, value;
  Revision modified{};  // of its last change
  LeaseId lease{};
  bool operator==(const Record&) const = default;
};

// Holds if the record was last changed at this revision; with revision 0, if there is none.
struct Condition {
  std::string key;
  Revision modified{};
};
struct Edit {
  std::string key;
  std::optional<std::string> value;  // none: erases the record, if there is one
  LeaseId lease{};
};

// All records whose keys begin with the prefix, by key. "": all records of the cluster.
struct ReadPrefix {
  std::string prefix;
};
// Makes all edits if all conditions hold, and none otherwise. Each key is edited at most once.
// Limits: request_check.hpp.
struct Commit {
  std::vector<Condition> conditions;
  std::vector<Edit> edits;
};
struct GrantLease {
  std::uint32_t seconds = 0;
};
struct RenewLease {
  LeaseId lease{};
};
// Ends the lease and erases its records.
struct EndLease {
  LeaseId lease{};
};
using RegistryRequest = std::variant<ReadPrefix, Commit, GrantLease, RenewLease, EndLease>;

struct Read {
  std::vector<Record> records;
};
struct Committed {
  bool done = false;  // false: a condition did not hold
};
struct Granted {
  LeaseId lease{};
  std::uint32_t seconds = 0;  // the registry may grant more than was asked for
};
struct Renewed {
  std::uint32_t seconds = 0;  // from the time of renewal. 0: the lease has ended
};
struct Ended {};  // also if the lease had ended before

enum class RequestId : std::uint64_t {};
struct Reply {
  RequestId request{};
  // Of the registry when the request was carried out; for a renewal, it may be an earlier one. 0
  // for an Error and for Ended.
  Revision revision{};
  // Error with status TIMEOUT: no answer came. The request may have been carried out, and may still
  // be. Other errors: it was not carried out.
  std::variant<Error, Read, Committed, Granted, Renewed, Ended> what;
};

class Registry {
 public:
  virtual ~Registry() = default;
  // Ids are never reused.
  virtual RequestId post(RegistryRequest request) = 0;
  // Appends the replies since the last call.
  virtual void poll(std::vector<Reply>& replies) = 0;
};

}  // namespace vmem::cluster
