// A forked child that does nothing.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace vmem::peer {

class LivingChild {
 public:
  LivingChild() : pid_(::fork()) {
    if (pid_ != 0) return;
    for (;;) ::pause();
  }
  ~LivingChild() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  LivingChild(const LivingChild&) = delete;
  LivingChild& operator=(const LivingChild&) = delete;

 private:
  const pid_t pid_;
};

}  // namespace vmem::peer
