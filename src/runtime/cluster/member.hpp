// This process's membership in a cluster: enrolls it, keeps it enrolled, knows the other nodes, and
// leaves in the end. While the registry is away, nothing changes for other parts of the process.
//
// A thread of its own steps the enrollment. Any other thread may make the calls.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/outage_log.hpp"
#include "cluster/enrollment/enrollment.hpp"
#include "cluster/registry/etcd/http.hpp"

namespace vmem::runtime {

// What this process needs to find a registry: the value of the option cluster, and the folder of
// the option certificates ("": none), for etcds://.
struct RegistryAccess {
  std::string address;
  std::string certificates;

  std::string cluster() const;  // its name; "" if the address cannot be used
};
// `on_ready`: poll() has replies; called by a thread of the registry. Errors: INVALID_OPTION for an
// address or files that cannot be used; UNSUPPORTED without a libcurl.
Result<std::unique_ptr<cluster::Registry>> open_registry(const RegistryAccess& access, std::function<void()> on_ready);
// How a part of this process makes its own connection to the registry; as open_registry().
using RegistryOpener = std::function<Result<std::unique_ptr<cluster::Registry>>(std::function<void()> on_ready)>;
RegistryOpener opener_of(RegistryAccess access);

cluster::Random system_random();

// The parameters of a cluster that this build can take part in.
cluster::ClusterParameters cluster_parameters(std::uint64_t base, std::uint64_t space_bytes);

// A record of this process, without addresses.
cluster::NodeRecord this_host(std::string kind, Incarnation incarnation);

// When this process has to stop acting as the member that it is: at once, unless a Member says
// otherwise. Any thread; one at a time sets it.
class Fence {
 public:
  // `clock`: that of the enrollment; outlives this.
  explicit Fence(const Clock& clock) : clock_(clock) {}
  // For a thread that acts as node `self`. The process may have been expelled, and have enrolled as
  // another node, before that thread hears of it: then the fence is up for it. For that the id is
  // set before the time, and read after it.
  bool is_up(NodeId self) const {
    const std::uint64_t at_us = at_us_.load(std::memory_order_acquire);
    return self_.load(std::memory_order_acquire) != self || clock_.now_us() >= at_us;
  }
  // 0: no member
  void set(NodeId self, std::uint64_t at_us) {
    self_.store(self, std::memory_order_release);
    at_us_.store(at_us, std::memory_order_release);
  }

 private:
  const Clock& clock_;
  std::atomic<NodeId> self_{};
  std::atomic<std::uint64_t> at_us_ = 0;
};

struct ClusterNode {
  NodeId id{};
  cluster::NodeRecord record;
  std::optional<cluster::DrainOrder> drain = std::nullopt;  // it is asked to leave
  // It is asked to lend less HBM than its record says; only in list_nodes.
  std::optional<cluster::HbmLimit> hbm_limit = std::nullopt;
  std::optional<cluster::Holdings> holds = std::nullopt;  // as it said last; only in list_nodes
  cluster::Revision holds_at{};                           // when it said so
};

// The cluster as of a revision of its registry.
struct ClusterView {
  cluster::Revision as_of{};
  NodeId self{};               // this node
  cluster::Revision record{};  // of its record nodes/SELF
  cluster::NodeRecord own;
  std::optional<cluster::DrainOrder> drain;    // it is asked to leave
  std::optional<cluster::HbmLimit> hbm_limit;  // it is asked to lend less HBM
  std::vector<ClusterNode> nodes;              // the others
};
// As the enrollment has read it last. `own`: the record that this node enrolled with. REQUIRES: it
// is enrolled, and knows the members.
ClusterView cluster_view(const cluster::Enrollment& enrollment, cluster::NodeRecord own);

class Member {
 public:
  struct Config {
    RegistryAccess registry;
    cluster::ClusterParameters parameters;
    cluster::NodeRecord record;  // incarnation, addresses, kind, labels, what it lends
    std::uint32_t lease_s = 90;
    Fence& fence;  // outlives this
    // Called by the member's thread, first before join() returns: with each reading of the registry
    // (`changed`: the nodes are others than before), and when this node is no member any more.
    std::function<void(const ClusterView& view, bool changed)> seen;
    std::function<void(const std::vector<cluster::Slice>& held)> expelled;
    // What this node holds for others; called by the member's thread, about once a second. May be
    // empty.
    std::function<cluster::Holdings()> holdings = {};
  };
  // Returns once this process is enrolled. Errors: those of open_registry; INVALID_OPTION if the
  // cluster does not take it in, naming what differs; TIMEOUT, with what the registry's servers
  // said, after most_us.
  static Result<std::unique_ptr<Member>> join(Config config, std::uint64_t most_us);
  // Leaves, and waits for that for at most 2 s. What is asked for after that is refused.
  void leave();
  ~Member();  // leaves
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  NodeId id() const;  // 0: not enrolled at present
  const cluster::ClusterParameters& parameters() const { return config_.parameters; }

  // Each waits for the registry, the first for at most most_us. Errors: TIMEOUT; ADDRESS_SPACE if
  // not as many adjacent slices are free, those that others have left behind among them;
  // NOT_INITIALIZED when the member ends, or the cluster does not take it in again.
  Result<std::uint64_t> take_serial(std::uint64_t most_us);
  Result<std::vector<cluster::Slice>> take_slices(std::uint32_t count);
  // From now on the slice is not given back when this node leaves: regions live there that other
  // nodes may have open. Errors: IN_USE, this node does not hold it any more, after an expulsion.
  Status keep(cluster::Slice slice);
  // False from before `expelled` is called on.
  bool holds(cluster::Slice slice) const;

 private:
  template <class Value>
  struct Asked {
    std::uint32_t count = 0;  // of slices
    cluster::Slice slice{};   // to be taken over
    NodeId from{};            // from this node; 0: none is
    std::promise<Result<Value>> promise;
  };
  template <class Value>
  using Tickets = std::map<cluster::Ticket, std::promise<Result<Value>>>;
  explicit Member(Config config) : config_(std::move(config)) {}
  void run();
  void take(cluster::EnrollmentEvent& event);
  void ask();
  void tell_nodes();
  void refuse_asked();
  void say_trouble();
  Error over_error() const;
  Result<std::vector<cluster::Slice>> ask_for(Asked<std::vector<cluster::Slice>> asked);
  Status reclaim();
  std::vector<cluster::Slice> to_release() const;
  void wake();

  const Config config_;
  const SteadyClock clock_;
  std::unique_ptr<cluster::Registry> registry_;
  // Only for the member's thread, from the start of the thread on.
  std::unique_ptr<cluster::Enrollment> enrollment_;
  bool nodes_changed_ = false;
  cluster::Revision told_{};  // the reading that was told last
  OutageLog outside_;         // the time from an expulsion to the next enrollment
  Tickets<std::uint64_t> serials_;
  Tickets<std::vector<cluster::Slice>> slices_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Protected by mutex_.
  bool woken_ = false;
  bool leaving_ = false;
  bool joined_ = false;  // enrolled, and the nodes were told
  NodeId id_{};
  std::optional<Error> refused_;  // why it cannot take part
  std::optional<Error> trouble_;  // what delays enrollment
  bool over_ = false;
  std::vector<Asked<std::uint64_t>> asked_serials_;
  std::vector<Asked<std::vector<cluster::Slice>>> asked_slices_;
  std::vector<cluster::Slice> to_free_;  // taken over from others, to be released
  std::set<cluster::Slice> held_, kept_;

  std::thread thread_;
};

}  // namespace vmem::runtime
