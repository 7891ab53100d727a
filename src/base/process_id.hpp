// Other processes of this machine, named so that a recycled pid is never taken for the process that
// had it before.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"

namespace vmem {

struct ProcessId {
  pid_t pid = 0;
  std::uint64_t started = 0;  // clock ticks after the boot, from /proc/PID/stat
  bool operator==(const ProcessId&) const = default;
};

// Of the process that has this pid now; none if there is none, or if it has ended and its parent
// has not waited for it.
std::optional<ProcessId> process_with(pid_t pid);
inline bool lives(const ProcessId& process) { return process_with(process.pid) == process; }

// A pidfd, readable once the process ends; none if it is certain that it has ended: nobody has its
// pid, or another process has. Errors: UNSUPPORTED, with the reason, if that cannot be seen here.
Result<std::optional<FileDescriptor>> watch(const ProcessId& process);

// The kernel's id of this boot: start times are of one boot. "": unknown
std::string this_boot();
// The namespace in which this process's pids have a meaning; unique within a boot. 0: unknown
std::uint64_t pid_namespace();

}  // namespace vmem
