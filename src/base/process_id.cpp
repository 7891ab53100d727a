#include "base/process_id.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace vmem {

std::optional<ProcessId> process_with(pid_t pid) {
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
  ProcessId found{.pid = pid};
  if (!(fields >> found.started) || state == "Z" || state == "X") return std::nullopt;
  return found;
}

Result<std::optional<FileDescriptor>> watch(const ProcessId& process) {
  FileDescriptor opened(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  const int error = errno;
  // Checked after the opening: a process that has the pid now had it then.
  if (!lives(process)) return std::nullopt;
  if (opened) return opened;
  return fail(VMEM_ERROR_UNSUPPORTED,
              fmt::format("process {} cannot be watched (pidfd_open: {}); Linux 5.3 or later can", process.pid,
                          std::strerror(error)),
              error);
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
