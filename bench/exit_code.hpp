// Exit codes; `vmem bench --help` prints the same list.
#pragma once

namespace vmem::bench {

enum ExitCode : int {
  kExitOk = 0,
  // A figure was measured over wrong data, and the report names the first bad offset; or, with
  // --check, a figure misses its goal.
  kExitMismatch = 1,
  // Unknown scenario or option, unreadable file, or sizes that contradict each other or the
  // machine.
  kExitBadOptions = 2,
  kExitFailed = 3,  // the machine, the driver or the runtime failed; the message says which
};

}  // namespace vmem::bench
