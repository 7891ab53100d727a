#include "runtime/cluster/mover_pages.hpp"

#include <sys/prctl.h>

#include <chrono>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/memory_reserve.hpp"
#include "base/signals_blocked.hpp"
#include "runtime/cluster/directory_service.hpp"

namespace vmem::runtime {

using rdma::wire::Answer;

namespace {
constexpr std::chrono::milliseconds kLook{100};  // for pages that have waited too long
}

struct MoverPages::Published {
  const Shared shared;
  // Guarded by the owner's mutex.
  std::uint32_t jobs = 0;  // that may open its pages, or have one open
  bool removed = false;
};

// A page on its way to another node. One at a time has it: the mover, a worker, who borrowed the
// page, or a line.
struct MoverPages::Job {
  // What happens to it next: after the page was closed, or in a worker.
  enum class Next : std::uint8_t { copy, prove, refuse, wait, end };

  sharing::SharedPage page;
  std::uint64_t since_us = SteadyClock().now_us();
  Lent lent;
  std::shared_ptr<Published> region;
  std::optional<migration::OpenPageRequest> open;
  std::optional<migration::ClosePageRequest> close;
  Next next = Next::refuse;
  bool is_open = false;
  bool has_room = false;   // of the staging memory; with a copy, the copy's
  gpu::PinnedBuffer copy;  // empty: lent in place
  Answer refusal = Answer::unknown;
  JobPtr behind;  // in a line

  // Behind the region's end: whatever the program had there before. It is not lent.
  std::size_t tail_bytes() const {
    const std::uint64_t begin = std::uint64_t{page.page} * page.bytes;
    const std::uint64_t bytes = region->shared.region->bytes;
    return bytes >= begin + page.bytes ? 0 : begin + page.bytes - bytes;
  }
  migration::PageRun run() const { return {region->shared.region, page.page, 1}; }
  std::byte* bytes() const { return copy ? copy.data() : open->host; }
};

// A page that is lent. Called, or dropped where memory is short, it is given back.
class MoverPages::Loan {
 public:
  Loan(MoverPages& of, JobPtr job) noexcept : of_(of), job_(std::move(job)) {}
  Loan(Loan&&) noexcept = default;
  ~Loan() { (*this)(); }
  void operator()() noexcept {
    if (job_) of_.given_back(std::move(job_));
  }

 private:
  MoverPages& of_;
  JobPtr job_;
};

namespace {

Answer answer_of(const Error& error) {
  if (error.status == VMEM_ERROR_LOST) return Answer::damaged;
  if (error.status == VMEM_ERROR_TIMEOUT) return Answer::again;
  return error.status == VMEM_ERROR_INVALID_POINTER ? Answer::unknown : Answer::failed;
}

}  // namespace

// ---- lines ----

// One by one: each job owns the next, and their number is not bounded here.
MoverPages::Line::~Line() {
  while (!empty()) pop();
}

void MoverPages::Line::push(JobPtr job) noexcept {
  Job* const added = job.get();
  (empty() ? first_ : last_->behind) = std::move(job);
  last_ = added;
  ++size_;
}

MoverPages::JobPtr MoverPages::Line::pop() noexcept {
  JobPtr job = std::move(first_);
  first_ = std::move(job->behind);
  --size_;
  return job;
}

void MoverPages::Line::extract(const Published& region, Line& to) noexcept {
  for (std::size_t left = size_; left > 0; --left) {
    JobPtr job = pop();
    (job->region.get() == &region ? to : *this).push(std::move(job));
  }
}

// ---- regions ----

MoverPages::MoverPages(const Parts& parts, Config config)
    : parts_(parts), config_(config), staging_(parts.devices.front().driver, config.staging_bytes) {
  const SignalsBlocked blocked;
  try {
    for (std::uint32_t i = 0; i < config_.workers; ++i) workers_.emplace_back([this] { run(); });
  } catch (...) {
    stop();
    throw;
  }
}

MoverPages::~MoverPages() {
  {
    std::unique_lock lock(mutex_);
    settled_.wait(lock, [&] { return jobs_ == 0; });
  }
  stop();
}

void MoverPages::add(pagetable::Serial serial, Shared region) {
  auto added = std::make_shared<Published>(std::move(region));
  const std::lock_guard lock(mutex_);
  regions_.insert_or_assign(serial, std::move(added));
}

void MoverPages::remove(pagetable::Serial serial) {
  std::unique_lock lock(mutex_);
  const auto found = regions_.find(serial);
  if (found == regions_.end()) return;
  const std::shared_ptr<Published> region = std::move(found->second);
  regions_.erase(found);
  region->removed = true;
  Line dropped;
  waiting_.extract(*region, dropped);
  while (!dropped.empty()) {
    JobPtr job = dropped.pop();
    job->refusal = Answer::unknown;
    job->next = Job::Next::refuse;
    --region->jobs;
    posted_.push(std::move(job));
  }
  wanted_.notify_all();
  settled_.wait(lock, [&] { return region->jobs == 0; });
}

bool MoverPages::may_read(pagetable::Serial serial, const std::string& tenant) const {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(serial);
  if (found == regions_.end()) return false;
  const Shared& shared = found->second->shared;
  return cluster::directory::may_read(DirectoryService::tenant_of(tenant), DirectoryService::tenant_of(shared.tenant),
                                      shared.readers);
}

// Null: there is no such page. Otherwise the region waits for the job.
std::shared_ptr<MoverPages::Published> MoverPages::find(const sharing::SharedPage& page) {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(page.serial);
  if (found == regions_.end()) return nullptr;
  const pagetable::Region& region = *found->second->shared.region;
  if (page.page >= region.page_count || page.bytes != region.page_bytes()) return nullptr;
  ++found->second->jobs;
  ++jobs_;
  return found->second;
}

void MoverPages::leave_region(Job& job) noexcept {
  const std::lock_guard lock(mutex_);
  if (--job.region->jobs == 0) settled_.notify_all();
}

// ---- opening and closing ----

void MoverPages::lend(const sharing::SharedPage& page, Lent lent) {
  JobPtr job(new (std::nothrow) Job);
  if (job == nullptr) return lent(std::unexpected(Answer::again));
  job->page = page;
  job->lent = std::move(lent);
  job->region = find(page);
  if (!job->region) return job->lent(std::unexpected(Answer::unknown));
  open(std::move(job));
}

void MoverPages::open(JobPtr job) noexcept {
  migration::OpenPageRequest& request = job->open.emplace();
  request.run = job->run();
  request.for_other_node = true;
  request.then = [this, job = std::move(job)]() mutable { opened(std::move(job)); };
  parts_.mover.post(request);
}

void MoverPages::opened(JobPtr job) noexcept {
  using Next = Job::Next;
  const migration::OpenPageRequest& page = *job->open;
  job->is_open = page.result() && !page.absent;
  job->refusal = page.result() ? Answer::unknown : answer_of(page.result().error());
  const bool gone = job->refusal == Answer::damaged || (page.absent && !page.coming);
  if (gone && config_.gone) (void)ran_within_memory([&] { config_.gone(job->page); });
  if (!job->is_open) {
    job->next = Next::refuse;
    leave_region(*job);
    return post(std::move(job));
  }
  if (page.host != nullptr && job->tail_bytes() == 0) {
    job->next = Next::prove;
    return post(std::move(job));
  }
  if (take_room(*job)) {
    job->next = Next::copy;
    return post(std::move(job));
  }
  job->next = Next::wait;
  close(std::move(job));
}

void MoverPages::close(JobPtr job) noexcept {
  migration::ClosePageRequest& request = job->close.emplace();
  request.run = job->run();
  request.then = [this, job = std::move(job)]() mutable { closed(std::move(job)); };
  parts_.mover.post(request);
}

// An error means that the mover has ended, or the device is lost: the page is not open either.
void MoverPages::closed(JobPtr job) noexcept {
  job->is_open = false;
  if (job->next == Job::Next::wait) return wait_for_room(std::move(job));
  leave_region(*job);
  if (job->next == Job::Next::end) return end(std::move(job));
  post(std::move(job));
}

// The node's thread, for pages that were sent.
void MoverPages::given_back(JobPtr job) noexcept {
  if (!job->is_open) return end(std::move(job));
  job->next = Job::Next::end;
  close(std::move(job));
}

void MoverPages::end(JobPtr job) noexcept {
  give_up_room(*job);
  job.reset();
  const std::lock_guard lock(mutex_);
  if (--jobs_ == 0) settled_.notify_all();
}

// ---- room for copies ----

// Those that wait come first.
bool MoverPages::take_room(Job& job) noexcept {
  if (job.has_room) return true;
  const std::lock_guard lock(mutex_);
  job.has_room = waiting_.empty() && staging_.reserve(job.page.bytes);
  return job.has_room;
}

void MoverPages::wait_for_room(JobPtr job) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!job->region->removed && waiting_.size() < config_.most_waiting) {
      waiting_.push(std::move(job));
      wanted_.notify_one();
    } else {
      job->refusal = job->region->removed ? Answer::unknown : Answer::again;
      job->next = Job::Next::refuse;
      if (--job->region->jobs == 0) settled_.notify_all();
    }
  }
  if (job) return post(std::move(job));
  serve_waiting();  // the last copy may have been given back before the job stood in the line
}

void MoverPages::give_up_room(Job& job) noexcept {
  if (!job.has_room) return;
  if (job.copy) {
    staging_.give_back(std::move(job.copy));
  } else {
    staging_.cancel(job.page.bytes);
  }
  job.has_room = false;
  serve_waiting();
}

void MoverPages::serve_waiting() noexcept {
  for (;;) {
    JobPtr job;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty() || !staging_.reserve(waiting_.front().page.bytes)) return;
      job = waiting_.pop();
    }
    job->has_room = true;
    open(std::move(job));
  }
}

// A reader that does not take its pages holds up the others for no longer. REQUIRES: mutex_ is
// held.
void MoverPages::refuse_late() noexcept {
  const std::uint64_t now_us = SteadyClock().now_us();
  while (!waiting_.empty() && now_us - waiting_.front().since_us >= config_.most_wait_us) {
    JobPtr job = waiting_.pop();
    job->refusal = Answer::again;
    job->next = Job::Next::refuse;
    if (--job->region->jobs == 0) settled_.notify_all();
    posted_.push(std::move(job));
  }
}

// ---- workers ----

void MoverPages::post(JobPtr job) noexcept {
  const std::lock_guard lock(mutex_);
  posted_.push(std::move(job));
  wanted_.notify_one();
}

void MoverPages::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wanted_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void MoverPages::run() {
  ::prctl(PR_SET_NAME, "vmem-pages");
  const Device& device = parts_.devices.front();
  const gpu::Driver& driver = *device.driver;
  (void)driver->cuCtxSetCurrent(device.context);
  // Our calls must not invalidate a capture in another thread.
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  (void)driver->cuThreadExchangeStreamCaptureMode(&mode);
  MemoryReserve reserve;
  std::unique_lock lock(mutex_);
  const auto wanted = [&] { return stopping_ || !posted_.empty(); };
  for (;;) {
    wanted_.wait(lock, [&] { return wanted() || !waiting_.empty(); });
    wanted_.wait_for(lock, kLook, wanted);
    refuse_late();
    if (posted_.empty() && !stopping_) continue;
    if (posted_.empty()) break;
    JobPtr job = posted_.pop();
    lock.unlock();
    (void)reserve.refill();
    work_on(std::move(job));
    lock.lock();
  }
  staging_.drop_spare();
}

void MoverPages::work_on(JobPtr job) {
  if (job->next == Job::Next::copy) return copy(std::move(job));
  if (job->next == Job::Next::prove) return prove(std::move(job));
  refuse(std::move(job));
}

void MoverPages::copy(JobPtr job) {
  Status copied;
  const bool had = ran_within_memory([&] {
    copied = copy_out(*job);
    if (copied) return;
    if (const auto times = uncopied_.next(); times.logged)
      VMEM_LOG_WARN("{} cannot be copied for another node: {} ({} so far)", sharing::words(job->page),
                    copied.error().message, times.count);
  });
  job->next = had && copied ? Job::Next::prove : Job::Next::refuse;
  job->refusal = Answer::failed;
  close(std::move(job));
}

Status MoverPages::copy_out(Job& job) {
  VMEM_ASSIGN(job.copy, staging_.take(job.page.bytes));
  // A page that was never written is zero.
  const bool written = job.open->host != nullptr || job.open->device_window != 0;
  const std::size_t used = written ? job.page.bytes - job.tail_bytes() : 0;
  std::memset(job.copy.data() + used, 0, job.page.bytes - used);
  if (!written) return {};
  if (job.open->host != nullptr) {
    std::memcpy(job.copy.data(), job.open->host, used);
    return {};
  }
  Device& device = parts_.devices[std::size_t(job.region->shared.region->device)];
  return copy_window(device, job.open->device_window, job.copy.data(), used, WindowCopy::to_host);
}

void MoverPages::prove(JobPtr job) {
  if (!job->copy) give_up_room(*job);  // it was in HBM when it began to wait
  sharing::LentPage page;
  page.bytes = {job->bytes(), job->page.bytes};
  const bool had = ran_within_memory([&] { page.tag = job->region->shared.key->tag(page.bytes, job->page); });
  if (!had) {
    job->refusal = Answer::failed;
    job->next = Job::Next::refuse;
    return job->is_open ? close(std::move(job)) : refuse(std::move(job));
  }
  Lent lent = std::move(job->lent);
  page.give_back = Loan(*this, std::move(job));
  lent(std::move(page));
}

void MoverPages::refuse(JobPtr job) {
  job->lent(std::unexpected(job->refusal));
  end(std::move(job));
}

}  // namespace vmem::runtime
