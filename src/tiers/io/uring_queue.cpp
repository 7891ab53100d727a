#include "tiers/io/uring_queue.hpp"

#include <fmt/format.h>
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/log.hpp"

namespace vmem::tiers {
namespace {

constexpr std::uint64_t kWakeTag = ~std::uint64_t{0};
constexpr unsigned kSpinMs = 50;  // without requests, until the kernel's thread sleeps
constexpr int kSignalMs = 1000;   // limit for the kernel to signal a completion
constexpr unsigned kBlock = 4096;

std::unexpected<Error> refused(const char* call, int error) {
  if (error == EPERM || error == ENOSYS || error == EACCES) {
    return fail(
        VMEM_ERROR_UNSUPPORTED,
        fmt::format("{}: {}: io_uring is not to be had here (switched off by kernel.io_uring_disabled, or kept from "
                    "containers by their seccomp profile)",
                    call, std::strerror(error)),
        error);
  }
  return fail(VMEM_ERROR_DRIVER, fmt::format("{}: {}", call, std::strerror(error)), error);
}

std::unexpected<Error> not_polled(const char* what, int error) {
  return fail(VMEM_ERROR_UNSUPPORTED, fmt::format("{}: {}", what, std::strerror(error)), error);
}

struct FreeBlock {
  void operator()(std::byte* memory) const { std::free(memory); }
};

__kernel_timespec timespec_of(std::chrono::microseconds time) {
  return {time.count() / 1'000'000, time.count() % 1'000'000 * 1'000};
}

class UringQueue final : public IoQueue {
 public:
  explicit UringQueue(std::uint32_t depth) : depth_(depth), parts_(depth) {}
  ~UringQueue() override;
  UringQueue(const UringQueue&) = delete;
  UringQueue& operator=(const UringQueue&) = delete;

  Status open(const UringConfig& config);
  std::uint32_t depth() const override { return depth_; }
  void push(const Io& io) override;
  Status wait(std::vector<IoResult>& ended, std::chrono::microseconds longest) override;
  void wake() override;
  std::string describe() const override;

 private:
  Status open_ring(unsigned flags);
  void close_ring();
  int register_files();
  bool open_polling();
  Status try_polling(unsigned flags);
  Status set_up_polling();
  Status read_every_file();
  Result<int> one_result();
  void drain_event();
  void reap(std::vector<IoResult>& ended);
  Status sleep(std::chrono::microseconds longest);
  void arm();

  const std::uint32_t depth_;
  bool open_ = false, files_registered_ = false;
  bool polls_requests_ = false, polls_disks_ = false;
  std::vector<int> files_;
  io_uring ring_{};
  int event_ = -1;  // written by wake and, while polling, by the kernel on completions
  std::uint64_t event_value_ = 0;
  bool armed_ = false;  // the ring polls event_
  std::uint32_t in_flight_ = 0;
  std::vector<std::array<iovec, 2>> parts_;  // of requests with a head
  std::uint32_t next_parts_ = 0;
};

Status UringQueue::open(const UringConfig& config) {
  files_ = config.files;
  event_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event_ < 0) return refused("eventfd", errno);
  if (config.poll && open_polling()) return {};
  VMEM_TRY(open_ring(0));
  if (files_.empty()) return {};
  if (const int error = register_files(); error != 0)
    VMEM_LOG_DEBUG("files are not registered with io_uring, which looks them up at each request: {}",
                   std::strerror(error));
  return {};
}

Status UringQueue::open_ring(unsigned flags) {
  io_uring_params params{};
  params.flags = IORING_SETUP_CLAMP | flags;
  params.sq_thread_idle = kSpinMs;
  // One entry more than the depth polls the eventfd. The kernel's polling thread frees entries only
  // after a batch; until then new requests may replace as many completed ones, hence twice the
  // depth.
  const std::uint32_t entries = flags == 0 ? depth_ + 1 : 2 * depth_;
  if (const int error = io_uring_queue_init_params(entries, &ring_, &params); error != 0)
    return refused("io_uring_queue_init", -error);
  open_ = true;
  return {};
}

void UringQueue::close_ring() {
  if (open_) io_uring_queue_exit(&ring_);
  open_ = files_registered_ = false;
}

// Returns an errno; 0: success.
int UringQueue::register_files() {
  const int result = io_uring_register_files(&ring_, files_.data(), unsigned(files_.size()));
  files_registered_ = result == 0;
  return -result;
}

// False: no polling at all.
bool UringQueue::open_polling() {
  const Status disks = try_polling(IORING_SETUP_SQPOLL | IORING_SETUP_IOPOLL);
  const Status requests = disks ? disks : try_polling(IORING_SETUP_SQPOLL);
  polls_disks_ = disks.has_value();
  polls_requests_ = requests.has_value();
  if (!requests) {
    VMEM_LOG_WARN("nvme_poll has no effect: {}", requests.error().message);
  } else if (!disks) {
    VMEM_LOG_WARN("nvme_poll: the kernel polls for requests, not the disks: {} (NVMe needs nvme.poll_queues=N)",
                  disks.error().message);
  }
  return polls_requests_;
}

Status UringQueue::try_polling(unsigned flags) {
  VMEM_TRY(open_ring(flags));
  Status set_up = set_up_polling();
  if (!set_up) close_ring();
  return set_up;
}

Status UringQueue::set_up_polling() {
  // Before Linux 5.11 the kernel's thread supports only registered files.
  if (const int error = register_files(); error != 0) return not_polled("io_uring_register_files", error);
  // A ring that polls disks cannot poll the eventfd, so completions are signalled to the eventfd.
  if (const int error = io_uring_register_eventfd(&ring_, event_); error != 0)
    return not_polled("io_uring_register_eventfd", -error);
  return read_every_file();
}

// Only the first request shows whether a disk supports polling. Also checks that the kernel signals
// completions.
Status UringQueue::read_every_file() {
  const std::unique_ptr<std::byte, FreeBlock> block(static_cast<std::byte*>(std::aligned_alloc(kBlock, kBlock)));
  if (!block) return not_polled("a buffer for a polled read", ENOMEM);
  for (std::size_t i = 0; i < files_.size(); ++i) {
    io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
    io_uring_prep_read(sqe, int(i), block.get(), kBlock, 0);
    sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_submit(&ring_);
    VMEM_ASSIGN(const int result, one_result());
    if (result < 0) return not_polled("a polled read", -result);
    pollfd signal{event_, POLLIN, 0};
    if (::poll(&signal, 1, kSignalMs) != 1) return not_polled("the signal for a polled read", ETIME);
    drain_event();
  }
  return {};
}

Result<int> UringQueue::one_result() {
  io_uring_cqe* cqe = nullptr;
  int error = 0;
  do {
    error = io_uring_wait_cqe(&ring_, &cqe);
  } while (error == -EINTR);
  if (error != 0) return not_polled("io_uring_wait_cqe", -error);
  const int result = cqe->res;
  io_uring_cqe_seen(&ring_, cqe);
  return result;
}

UringQueue::~UringQueue() {
  close_ring();
  if (event_ >= 0) ::close(event_);
}

void UringQueue::push(const Io& io) {
  io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
  const int file = files_registered_ || files_.empty() ? int(io.file) : files_[io.file];
  if (io.head_bytes != 0) {
    // The kernel reads `parts` on submission, before depth_ more requests are pushed.
    auto& parts = parts_[next_parts_++ % depth_];
    const std::uint32_t head = std::min(io.head_bytes, io.bytes);
    parts = {{{io.head, head}, {io.memory, io.bytes - head}}};
    if (io.kind == Io::Kind::read) {
      io_uring_prep_readv(sqe, file, parts.data(), unsigned(parts.size()), io.offset);
    } else {
      io_uring_prep_writev(sqe, file, parts.data(), unsigned(parts.size()), io.offset);
    }
  } else if (io.kind == Io::Kind::read) {
    io_uring_prep_read(sqe, file, io.memory, io.bytes, io.offset);
  } else {
    io_uring_prep_write(sqe, file, io.memory, io.bytes, io.offset);
  }
  if (files_registered_) sqe->flags |= IOSQE_FIXED_FILE;
  io_uring_sqe_set_data64(sqe, io.tag);
  ++in_flight_;
}

void UringQueue::reap(std::vector<IoResult>& ended) {
  io_uring_cqe* cqe = nullptr;
  while (io_uring_peek_cqe(&ring_, &cqe) == 0 && cqe != nullptr) {
    const std::uint64_t tag = io_uring_cqe_get_data64(cqe);
    if (tag == kWakeTag) {
      armed_ = false;
    } else {
      ended.push_back({tag, cqe->res});
      --in_flight_;
    }
    io_uring_cqe_seen(&ring_, cqe);
  }
}

void UringQueue::arm() {
  if (armed_) return;
  io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
  io_uring_prep_poll_add(sqe, event_, POLLIN);
  io_uring_sqe_set_data64(sqe, kWakeTag);
  armed_ = true;
}

Status UringQueue::sleep(std::chrono::microseconds longest) {
  if (in_flight_ == 0 || polls_requests_) {
    pollfd waiting{event_, POLLIN, 0};
    const __kernel_timespec kernel_limit = timespec_of(longest);
    const timespec limit{kernel_limit.tv_sec, long(kernel_limit.tv_nsec)};
    if (::ppoll(&waiting, 1, &limit, nullptr) < 0 && errno != EINTR) return refused("ppoll", errno);
    return {};
  }
  arm();
  __kernel_timespec limit = timespec_of(longest);
  io_uring_cqe* cqe = nullptr;
  const int result = io_uring_submit_and_wait_timeout(&ring_, &cqe, 1, &limit, nullptr);
  const bool passing = result == -ETIME || result == -EINTR || result == -EAGAIN || result == -EBUSY;
  if (result < 0 && !passing) return refused("io_uring_enter", -result);
  return {};
}

Status UringQueue::wait(std::vector<IoResult>& ended, std::chrono::microseconds longest) {
  const std::size_t before = ended.size();
  if (const int result = io_uring_submit(&ring_);
      result < 0 && result != -EINTR && result != -EAGAIN && result != -EBUSY)
    return refused("io_uring_submit", -result);
  reap(ended);
  if (ended.size() == before) {
    VMEM_TRY(sleep(longest));
    reap(ended);
  }
  // Last: a wake after this ends the next wait.
  drain_event();
  return {};
}

void UringQueue::drain_event() {
  while (::read(event_, &event_value_, sizeof(event_value_)) > 0) {
  }
}

void UringQueue::wake() {
  const std::uint64_t one = 1;
  // It fails only if the counter is full of pending wakes.
  [[maybe_unused]] const auto written = ::write(event_, &one, sizeof(one));
}

std::string UringQueue::describe() const {
  const char* const polled = polls_disks_ ? ", requests and disks polled" : polls_requests_ ? ", requests polled" : "";
  return fmt::format("io_uring, depth {}{}{}", depth_, files_registered_ ? ", registered files" : "", polled);
}

}  // namespace

Result<std::unique_ptr<IoQueue>> make_uring_queue(const UringConfig& config) {
  auto queue = std::make_unique<UringQueue>(config.depth);
  VMEM_TRY(queue->open(config));
  return queue;
}

}  // namespace vmem::tiers
