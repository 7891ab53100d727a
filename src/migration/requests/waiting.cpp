// How requests end, and how long they wait.
#include <algorithm>
#include <utility>

#include "migration/core.hpp"
#include "migration/request.hpp"

namespace vmem::migration {

const Status& Request::wait() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return done(); });
  return result_;
}

void Request::finish(Status result) {
  std::move_only_function<void()> next = std::move(then);
  {
    const std::lock_guard lock(mutex_);
    result_ = std::move(result);
    done_.store(true, std::memory_order_release);
    ended_.notify_all();
  }
  if (next) next();
}

Status ended_error() { return fail(VMEM_ERROR_NOT_INITIALIZED, "vmem has ended in this process"); }

bool Patience::over(const Core& core, std::uint64_t times) {
  return over_limit(core, times * core.config.acquire_wait_us);
}

bool Patience::over_limit(const Core& core, std::uint64_t limit_us) {
  const std::uint64_t now_us = core.now_us();
  if (since_us_ == 0) {
    since_us_ = now_us;
    return false;
  }
  // Progress elsewhere extends the wait, but not for ever: others may take what it frees.
  if (now_us - since_us_ >= 10 * limit_us) return true;
  return now_us - std::max(since_us_, core.last_progress_us) >= limit_us;
}

bool Deadline::over(const Core& core, std::uint64_t most_us) {
  const std::uint64_t now_us = core.now_us();
  if (since_us_ == 0) since_us_ = now_us;
  return now_us - since_us_ >= std::min(core.config.call_wait_us, most_us);
}

// For requests whose caller holds nothing: another thread may have freed the region since, and its
// record may have been reused.
Status check_live(const PageRun& run) {
  if (PageRef{run.region, run.first}.live() && run.count <= run.region->page_count - run.first) return {};
  return fail(VMEM_ERROR_INVALID_POINTER, "the allocation was freed by another thread meanwhile");
}

}  // namespace vmem::migration
