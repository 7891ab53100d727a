// This process's membership in a cluster: enrolls it, keeps it enrolled, knows the other nodes, and
// leaves in the end. While the registry is away, nothing changes for other parts of the process.
//
// A thread of its own steps the enrollment. Any thread may make the calls.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "cluster/enrollment/enrollment.hpp"
#include "cluster/registry/etcd/http.hpp"

namespace vmem::runtime {

// What this process needs to find a registry: the value of the option cluster, and the folder of
// the option certificates ("": none), for etcds://.
struct RegistryAccess {
  std::string address;
  std::string certificates;
};
// `on_ready`: poll() has replies; called by a thread of the registry. Errors: INVALID_OPTION for an
// address or files that cannot be used; UNSUPPORTED without a libcurl.
Result<std::unique_ptr<cluster::Registry>> open_registry(const RegistryAccess& access, std::function<void()> on_ready);

// The parameters of a cluster that this build can take part in.
cluster::ClusterParameters cluster_parameters(std::uint64_t base, std::uint64_t space_bytes);

// A record of this process, without addresses.
cluster::NodeRecord this_host(std::string kind, Incarnation incarnation);

struct ClusterNode {
  NodeId id{};
  cluster::NodeRecord record;
  bool draining = false;
};

class Member {
 public:
  struct Config {
    RegistryAccess registry;
    cluster::ClusterParameters parameters;
    cluster::NodeRecord record;  // incarnation, addresses, kind, labels, what it lends
    std::uint32_t lease_s = 90;
    // The other nodes are these now. Called by the member's thread, first before join() returns.
    std::function<void(const std::vector<ClusterNode>&)> changed;
  };
  // Returns once this process is enrolled. Errors: those of open_registry; INVALID_OPTION if the
  // cluster does not take it in, naming what differs; TIMEOUT, with what the registry's servers
  // said, after most_us.
  static Result<std::unique_ptr<Member>> join(Config config, std::uint64_t most_us);
  // Leaves, and waits for that for at most 2 s.
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  NodeId id() const;  // 0: not enrolled at present

 private:
  explicit Member(Config config) : config_(std::move(config)) {}
  void run();
  void take(cluster::EnrollmentEvent& event);
  void tell_nodes();
  void wake();

  const Config config_;
  const SteadyClock clock_;
  std::unique_ptr<cluster::Registry> registry_;
  // Only for the member's thread, from the start of the thread on.
  std::unique_ptr<cluster::Enrollment> enrollment_;
  bool nodes_changed_ = false;
  bool told_ = false;

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

  std::thread thread_;
};

}  // namespace vmem::runtime
