// Tells a cluster's registry at once of members on this host whose process has ended. Without it
// they count until their leases end, and regions whose home they were cannot be opened meanwhile.
//
// Only a process that was seen to end is reported: one of this boot and of this process's pid
// namespace, known by its start time, over a pidfd.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/file_descriptor.hpp"
#include "base/log_limit.hpp"
#include "base/process_id.hpp"
#include "runtime/cluster/member.hpp"

namespace vmem::runtime {

class HostWatch {
 public:
  // Errors: DRIVER, if the kernel gives no descriptor to wake the thread with.
  static Result<std::unique_ptr<HostWatch>> start(RegistryAccess registry);
  ~HostWatch();

  // The members as of now. Any thread; does not wait.
  void see(const ClusterView& view);

 private:
  struct Watched {
    Incarnation incarnation{};
    ProcessId process;
    FileDescriptor end;  // empty: it has ended
  };
  using Members = std::map<NodeId, Watched>;

  HostWatch(RegistryAccess registry, FileDescriptor wake) : registry_(std::move(registry)), wake_(std::move(wake)) {}
  void run();
  bool take_seen();
  void wait();
  bool report_ended();
  Status report(NodeId id, const Watched& member) const;

  const RegistryAccess registry_;
  const FileDescriptor wake_;
  // Of the thread.
  Members members_;
  bool late_ = false;  // somebody's end is still to be reported
  LogLimit unreported_;

  std::mutex mutex_;
  Members seen_;         // protected by mutex_, as all below
  bool is_new_ = false;  // seen_
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace vmem::runtime
