#include "base/process_id.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace vmem {

namespace {

struct Seen {
  ProcessId process;
  bool is_zombie = false;
};

// None: what /proc says of the process cannot be read.
std::optional<Seen> look_at(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  // The program's name stands in parentheses and may contain any character. Fields after it: the
  // state is the first, the start time the 20th.
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(name_end + 1));
  std::string state, skipped;
  fields >> state;
  for (int i = 0; i < 18; ++i) fields >> skipped;
  Seen seen{.process = {.pid = pid}, .is_zombie = state == "Z" || state == "X"};
  if (!(fields >> seen.process.started)) return std::nullopt;
  return seen;
}

}  // namespace

std::optional<ProcessId> process_with(pid_t pid) {
  const std::optional<Seen> seen = look_at(pid);
  return seen && !seen->is_zombie ? std::optional(seen->process) : std::nullopt;
}

Result<std::optional<FileDescriptor>> watch(const ProcessId& process) {
  FileDescriptor opened(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  const int error = errno;
  if (!opened && error == ESRCH) return std::nullopt;
  if (!opened)
    return fail(VMEM_ERROR_UNSUPPORTED,
                fmt::format("process {} cannot be watched (pidfd_open: {}); Linux 5.3 or later can", process.pid,
                            std::strerror(error)),
                error);
  // Checked after the opening: a process that has the pid now had it then. A zombie's descriptor is
  // readable, unless threads of it live on.
  const std::optional<Seen> seen = look_at(process.pid);
  if (seen && seen->process == process) return opened;
  if (seen || (::kill(process.pid, 0) != 0 && errno == ESRCH)) return std::nullopt;
  return fail(VMEM_ERROR_UNSUPPORTED,
              fmt::format("process {} cannot be watched: /proc/{}/stat cannot be read, so another process may have its "
                          "pid now",
                          process.pid, process.pid));
}

std::string this_boot() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot;
}

std::uint64_t pid_namespace() {
  struct stat about{};
  return ::stat("/proc/self/ns/pid", &about) == 0 ? about.st_ino : 0;
}

}  // namespace vmem
