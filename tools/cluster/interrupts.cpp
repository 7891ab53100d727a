#include "tools/cluster/interrupts.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

namespace vmem::tools::local_cluster {

Interrupts::Interrupts() {
  sigemptyset(&awaited_);
  for (const int each : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&awaited_, each);
  ::pthread_sigmask(SIG_BLOCK, &awaited_, &before_);
}

Interrupts::~Interrupts() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

Status Interrupts::pause(std::chrono::milliseconds time) const {
  const auto end = std::chrono::steady_clock::now() + time;
  for (;;) {
    const auto rest = std::max(end - std::chrono::steady_clock::now(), std::chrono::nanoseconds(0));
    const timespec most{.tv_sec = static_cast<time_t>(rest.count() / 1'000'000'000),
                        .tv_nsec = static_cast<long>(rest.count() % 1'000'000'000)};
    const int signal = ::sigtimedwait(&awaited_, nullptr, &most);
    if (signal > 0) return fail(VMEM_ERROR_TIMEOUT, fmt::format("ended by SIG{}", ::sigabbrev_np(signal)));
    if (errno != EINTR) return {};
  }
}

}  // namespace vmem::tools::local_cluster
