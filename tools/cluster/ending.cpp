#include "tools/cluster/ending.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

namespace vmem::tools::local_cluster {
namespace {

using std::chrono::steady_clock;

struct Watched {
  std::size_t place = 0;
  pid_t pid = 0;
  FileDescriptor end;
};

// Drops those that have ended.
void poll_ends(std::vector<Watched>& left, std::chrono::milliseconds most) {
  std::vector<pollfd> polled;
  for (const Watched& each : left) polled.push_back({.fd = each.end.get(), .events = POLLIN, .revents = 0});
  if (::poll(polled.data(), polled.size(), static_cast<int>(most.count())) <= 0) return;
  std::size_t place = 0;
  std::erase_if(left, [&](const Watched&) { return polled[place++].revents != 0; });
}

void wait_for_ends(std::vector<Watched>& left, std::chrono::milliseconds most) {
  const auto end = steady_clock::now() + most;
  while (!left.empty()) {
    const auto rest = std::chrono::ceil<std::chrono::milliseconds>(end - steady_clock::now());
    if (rest.count() <= 0) return;
    poll_ends(left, rest);
  }
}

void send(const std::vector<Watched>& to, int signal) {
  for (const Watched& each : to) (void)::syscall(SYS_pidfd_send_signal, each.end.get(), signal, nullptr, 0);
}

}  // namespace

Result<std::vector<std::size_t>> end_processes(std::span<const ProcessId> processes, const Patience& patience) {
  std::vector<Watched> left;
  for (std::size_t place = 0; place < processes.size(); ++place) {
    VMEM_ASSIGN(auto end, watch(processes[place]));
    if (end) left.push_back({place, processes[place].pid, *std::move(end)});
  }
  send(left, SIGTERM);
  wait_for_ends(left, patience.after_term);
  std::vector<std::size_t> killed;
  for (const Watched& each : left) killed.push_back(each.place);
  send(left, SIGKILL);
  wait_for_ends(left, patience.after_kill);
  if (left.empty()) return killed;
  return fail(VMEM_ERROR_TIMEOUT,
              fmt::format("process {} has not ended {} ms after SIGKILL; it may wait for a device: look at "
                          "/proc/{}/status, and run this again",
                          left.front().pid, patience.after_kill.count(), left.front().pid));
}

}  // namespace vmem::tools::local_cluster
