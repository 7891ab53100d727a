// A registry that one node keeps for clusters without etcd: it answers the questions of
// ServedRegistry (protocol.hpp). Pure but for the clock and the store.
//
// Each pair of an identity, as the connection has proved it, and a cluster's name has records of
// its own.
//
// With a store, nothing that an answer shows is lost: all that has changed is written before the
// answer is returned, and while the store fails no request is answered with an outcome. After a
// restart, every lease runs its full time again, because renewals are not written.
//
// Without a store, a restart loses everything, and what is new must not be taken for what is lost:
// - Revisions and leases are numbered from the incarnation on, which is the time of the start.
//   Fewer than one change is made a microsecond, so the next incarnation begins above them.
// - No lease is granted until those of the run before have ended, so that its nodes have fenced
//   themselves. Without a lease nobody becomes a node or takes a slice.
//
// Threads: one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.hpp"
#include "base/log_limit.hpp"
#include "cluster/registry/registry_state.hpp"
#include "cluster/registry/served/namespace_file.hpp"
#include "cluster/registry/served/read_pages.hpp"
#include "cluster/registry/served/registry_store.hpp"
#include "cluster/registry/served/sessions.hpp"

namespace vmem::cluster {

// What one daemon keeps for all its clients.
struct ServedLimits {
  std::size_t namespaces = 64, of_identity = 8;
  // Of a namespace.
  RegistryLimits each{.records = 16'384, .bytes = std::size_t{16} << 20, .leases = 4096, .lease_seconds = 120};
  served::SessionLimits sessions;
  std::size_t reading_bytes = std::size_t{64} << 20;  // of large readings in progress
};

class RegistryServer {
 public:
  // What ran here before, where the store does not know.
  enum class Before : std::uint8_t { nothing, perhaps_a_server };

  struct Setup {
    RegistryStore* store = nullptr;  // outlives the server; null: nothing is kept
    std::uint64_t started_us = 0;    // since 1970
    Before before = Before::perhaps_a_server;
    // Leases last at most this long (limits.each.lease_seconds), in every run.
    ServedLimits limits;
    // The records that a new namespace begins with, where numbers must not begin at 1 again. Their
    // number and sizes are the same for every incarnation.
    std::function<std::vector<Edit>(std::uint64_t incarnation)> first_records;
  };

  // Errors: INVALID_OPTION if the first records pass the limits, the store cannot be read or
  // written, or a file in it is damaged.
  static Result<std::unique_ptr<RegistryServer>> create(const Clock& clock, Setup setup);

  // Returns the answer to a message, or "" if that is no question.
  std::string answer(const std::string& identity, std::string_view message);
  // Ends the leases that were not renewed in time.
  void step();
  std::uint64_t next_due_us() const noexcept;  // of step(); UINT64_MAX: never

  std::uint64_t incarnation() const noexcept { return static_cast<std::uint64_t>(incarnation_); }
  std::size_t namespaces() const noexcept { return namespaces_.size(); }

 private:
  struct Namespace {
    explicit Namespace(RegistryState initial) : state(std::move(initial)) {}
    RegistryState state;
    std::uint64_t kept_changes = 0;
  };
  using What = decltype(served::Answer::what);

  RegistryServer(const Clock& clock, Setup setup, served::Incarnation incarnation, bool remembers);
  void restore(const served::NamespaceFile& file);

  What answer_to(const served::Place& place, const served::Question& question);
  What carry_out(const served::Place& place, std::uint64_t client, const served::Open& open);
  What carry_out(const served::Place& place, std::uint64_t client, const served::WritePiece& piece);
  What carry_out(const served::Place& place, std::uint64_t client, const served::FetchPage& fetch);
  What carry_out(const served::Place& place, std::uint64_t client, const served::Renew& renew);
  What carry_out(const served::Place& place, std::uint64_t client, const served::End& end);
  served::Outcome write(const served::Place& place, std::string_view bytes);
  served::Outcome apply(const served::Place& place, const RegistryRequest& request);
  const served::ReadPages::Reading& read(const served::Place& place, const served::FetchPage& fetch);

  Result<Namespace*> need(const served::Place& place);
  Namespace* find(const served::Place& place);
  RegistryState initial_state() const;
  Status check_grant() const;
  Status keep(const served::Place& place);
  Status keep(const served::Place& place, Namespace& kept);

  // Constant after construction.
  const Clock& clock_;
  const Setup setup_;
  const served::Incarnation incarnation_;
  const std::uint64_t grants_from_us_;  // by the clock

  std::map<served::Place, Namespace> namespaces_;
  served::Sessions sessions_;
  served::ReadPages readings_;
  std::uint64_t keep_again_us_ = 0;  // after a failure of the store
  LogLimit failures_;
};

}  // namespace vmem::cluster
