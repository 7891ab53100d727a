#include "runtime/cluster/host_watch.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/memory_reserve.hpp"
#include "runtime/cluster/registry_client.hpp"

namespace vmem::runtime {
namespace {

constexpr std::uint64_t kReportUs = 5'000'000;
constexpr int kAgainMs = 1'000;

}  // namespace

Result<std::unique_ptr<HostWatch>> HostWatch::start(RegistryAccess registry) {
  FileDescriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return fail(VMEM_ERROR_DRIVER, fmt::format("no eventfd: {}", std::strerror(errno)), errno);
  std::unique_ptr<HostWatch> watch(new HostWatch(std::move(registry), std::move(wake)));
  watch->thread_ = std::thread([it = watch.get()] { it->run(); });
  return watch;
}

HostWatch::~HostWatch() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  (void)::eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

void HostWatch::see(const ClusterView& view) {
  static const std::string boot = this_boot();
  static const std::uint64_t pids = pid_namespace();
  if (boot.empty() || pids == 0) return;
  Members seen;
  for (const ClusterNode& node : view.nodes) {
    const cluster::NodeRecord& record = node.record;
    if (record.boot != boot || record.pids != pids || record.pid == 0 || record.started == 0) continue;
    seen.emplace(node.id, Watched{.incarnation = record.incarnation,
                                  .process = {.pid = static_cast<pid_t>(record.pid), .started = record.started},
                                  .end = {}});
  }
  {
    const std::lock_guard lock(mutex_);
    seen_ = std::move(seen);
    is_new_ = true;
  }
  (void)::eventfd_write(wake_.get(), 1);
}

// ---- the thread ----

void HostWatch::run() {
  MemoryReserve reserve;
  while (take_seen()) {
    (void)reserve.refill();
    late_ = !report_ended();
    wait();
  }
}

// False: this ends.
bool HostWatch::take_seen() {
  Members seen;
  {
    const std::lock_guard lock(mutex_);
    if (ending_) return false;
    if (!std::exchange(is_new_, false)) return true;
    seen = std::move(seen_);
  }
  for (auto& [id, member] : seen) {
    const auto before = members_.find(id);
    if (before != members_.end() && before->second.process == member.process && before->second.end) {
      member.end = std::move(before->second.end);
      continue;
    }
    auto end = vmem::watch(member.process);
    if (!end) VMEM_LOG_DEBUG("{}", end.error().message);
    // Who cannot be watched is as if on another host.
    if (!end)
      member.process = {};
    else if (*end)
      member.end = **std::move(end);
  }
  members_ = std::move(seen);
  return true;
}

void HostWatch::wait() {
  std::vector<pollfd> polled{{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  std::vector<NodeId> whose;
  for (const auto& [id, member] : members_) {
    if (!member.end) continue;
    polled.push_back({.fd = member.end.get(), .events = POLLIN, .revents = 0});
    whose.push_back(id);
  }
  if (::poll(polled.data(), polled.size(), late_ ? kAgainMs : -1) <= 0) return;
  eventfd_t times = 0;
  if (polled.front().revents != 0) (void)::eventfd_read(wake_.get(), &times);
  for (std::size_t i = 0; i < whose.size(); ++i)
    if (polled[i + 1].revents != 0) members_.at(whose[i]).end = {};
}

// False: some are still to be reported.
bool HostWatch::report_ended() {
  bool all = true;
  for (auto& [id, member] : members_) {
    if (member.end || member.process.pid == 0) continue;
    if (!all) return false;  // the registry is away: each would wait for it
    const Status reported = report(id, member);
    if (reported) {
      member.process = {};
      continue;
    }
    all = false;
    if (cluster::is_away(reported.error())) continue;
    if (const auto times = unreported_.next(); times.logged)
      VMEM_LOG_WARN("the process of node {} has ended, and its record cannot be erased: {} ({} such failures)",
                    static_cast<std::uint64_t>(id), reported.error().message, times.count);
  }
  return all;
}

Status HostWatch::report(NodeId id, const Watched& member) const {
  VMEM_ASSIGN(const auto registry, RegistryClient::open(registry_, kReportUs));
  const std::string key = cluster::node_key(id);
  VMEM_ASSIGN(const auto records, registry->read(key));
  for (const cluster::Record& record : records) {
    if (record.key != key) continue;
    const auto node = cluster::parse_node_record(record.key, record.value);
    if (!node || node->incarnation != member.incarnation) return {};
    VMEM_ASSIGN(const bool erased, registry->commit({.conditions = {{.key = key, .modified = record.modified}},
                                                     .edits = {{.key = key, .value = std::nullopt, .lease = {}}}}));
    if (!erased) {
      VMEM_ASSIGN(const auto now, registry->read(key));
      // Another daemon may have erased it.
      if (std::ranges::find(now, key, &cluster::Record::key) == now.end()) return {};
      return fail(VMEM_ERROR_IN_USE, "its record has changed meanwhile");
    }
    VMEM_LOG_INFO("the process of node {} has ended without leaving the cluster", static_cast<std::uint64_t>(id));
  }
  return {};
}

}  // namespace vmem::runtime
