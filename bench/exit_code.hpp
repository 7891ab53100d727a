// What the program's exit code says; `vmem bench --help` prints the same list.
#pragma once

namespace vmem::bench {

enum ExitCode : int {
  kExitOk = 0,
  kExitMismatch = 1,    // a figure was measured over wrong data: the report names the first bad offset
  kExitBadOptions = 2,  // unknown scenario or option, sizes that contradict each other or the machine, unreadable file
  kExitFailed = 3,      // the machine, the driver or the runtime failed; the message says which
};

}  // namespace vmem::bench
