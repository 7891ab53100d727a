#include "base/aside.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <condition_variable>

#include "base/signals_blocked.hpp"

namespace vmem {

// Shared with the call's thread, which may outlive the Aside.
struct Aside::Running {
  explicit Running(Call given) : call(std::move(given)) {}
  void run() {
    ::prctl(PR_SET_NAME, "vmem-aside");
    call();
    call = nullptr;  // destroys the captures before a waiting thread continues
    const std::lock_guard lock(mutex);
    ended = true;
    changed.notify_all();
  }
  bool has_ended() {
    const std::lock_guard lock(mutex);
    return ended;
  }
  bool wait_until(std::chrono::steady_clock::time_point time) {
    std::unique_lock lock(mutex);
    return changed.wait_until(lock, time, [&] { return ended; });
  }

  Call call;
  std::mutex mutex;  // protects the members below
  std::condition_variable changed;
  bool ended = false;
};

void Aside::begin(Call call) noexcept {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Running> running;
  try {
    join_ended();
    running_.reserve(running_.size() + 1);
    running = std::make_shared<Running>(std::move(call));
    const SignalsBlocked blocked;
    running_.emplace_back(std::thread([running] { running->run(); }), running);
  } catch (...) {
    running ? running->call() : call();
  }
}

// REQUIRES: mutex_.
void Aside::join_ended() {
  std::erase_if(running_, [](auto& each) {
    if (!each.second->has_ended()) return false;
    each.first.join();
    return true;
  });
}

bool Aside::finish(std::chrono::microseconds limit) {
  const std::lock_guard lock(mutex_);
  const auto deadline = std::chrono::steady_clock::now() + limit;
  bool all = true;
  for (auto& [thread, running] : running_) {
    const bool ended = running->wait_until(deadline);
    ended ? thread.join() : thread.detach();
    all = all && ended;
  }
  running_.clear();
  return all;
}

}  // namespace vmem
