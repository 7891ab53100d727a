// While it lives, SIGINT, SIGTERM and SIGHUP end this thread's pauses instead of the process, so
// that what was begun can be taken back. REQUIRES: other threads start after it: they inherit the
// mask.
#pragma once

#include <signal.h>

#include <chrono>

#include "base/status.hpp"

namespace vmem::tools::local_cluster {

class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Errors: TIMEOUT, naming the signal, if one came since the last pause.
  Status pause(std::chrono::milliseconds time) const;

 private:
  sigset_t awaited_, before_;
};

}  // namespace vmem::tools::local_cluster
