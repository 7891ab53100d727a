// How a node gets its id: compares parameters, holds a lease, then takes the next serial as its id
// with a commit that also puts its record under the lease.
//
// The commit holds if neither the counter nor the parameters have changed since they were read. If
// it gets no answer it may be carried out later. The same commit is then posted again until one of
// the two was answered for certain: at most one can be done, and once one was refused because the
// counter has changed, the other is refused as well. Whose the record is tells its token. So a node
// never takes a second id while a commit for a first one may still be done.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cluster/enrollment/cluster_parameters.hpp"
#include "cluster/enrollment/lease_keeper.hpp"
#include "cluster/enrollment/node_record.hpp"
#include "cluster/enrollment/serial_counter.hpp"

namespace vmem::cluster {

// A node's place in the cluster, from its enrollment to its end.
struct Seat {
  NodeId id{};
  Revision record{};  // of nodes/ID, as this node knows it: only this node changes it
  std::string value;  // of that record
};

class Admission {
 public:
  Admission(RegistryCalls& calls, LeaseKeeper& lease, const EnrollmentConfig& config, const Random& random,
            const ClusterParameters& parameters, NodeRecord self)
      : calls_(calls),
        lease_(lease),
        parameters_(parameters),
        self_(std::move(self)),
        random_(random),
        backoff_(config, random) {}

  // Begins anew, with another lease, after the one that is held has ended.
  void restart();
  // The seat, once; then nothing is done until restart().
  std::optional<Seat> take_seat();
  // What the node says of itself. Incarnation and token are kept, whatever is passed. A commit that
  // is in flight may put the earlier record.
  void describe(NodeRecord self);
  const NodeRecord& self() const noexcept { return self_; }
  // Set once the parameters do not fit: for good.
  const std::optional<Error>& refused() const noexcept { return refused_; }
  // Why it takes as long as it does.
  const std::optional<Error>& trouble() const noexcept { return trouble_; }

  bool step(std::uint64_t now_us);
  std::uint64_t due_us() const;

 private:
  enum class Stage : std::uint8_t { compare, create, lease, count, meet, commit, verify, done };
  bool step_lease();
  RegistryRequest request() const;
  Commit admission() const;
  void handle(const Reply& reply, std::uint64_t now_us);
  void handle_error(const Error& error, std::uint64_t now_us);
  void compared(const Read& read);
  void counted(const Read& read, std::uint64_t now_us);
  void met(const Read& read, Revision revision, std::uint64_t now_us);
  void committed(bool done, Revision revision, std::uint64_t now_us);
  void verified(const Read& read, Revision revision, std::uint64_t now_us);
  void again(Stage stage, std::uint64_t now_us);
  void refuse(Error error);
  NodeId next_id() const { return NodeId{counter_.last + 1}; }

  RegistryCalls& calls_;
  LeaseKeeper& lease_;
  const ClusterParameters& parameters_;
  NodeRecord self_;
  const Random& random_;
  Backoff backoff_;
  Stage stage_ = Stage::compare;
  RegistryCall call_;
  std::uint64_t due_us_ = 0;
  Revision compared_{};  // of the record of parameters
  SerialCounter counter_;
  bool unsure_ = false;     // the commit in stage commit got no answer once
  bool committed_ = false;  // in stage verify: it was answered as done
  Revision answered_{};     // by the registry's revision
  std::optional<Seat> seat_;
  std::optional<Error> refused_, trouble_;
};

}  // namespace vmem::cluster
