#include "peer/borrower.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "base/memory_reserve.hpp"
#include "base/sizes.hpp"

namespace vmem::peer {
namespace {

LogLimit lenders_gone;  // shared by all borrowers

}  // namespace

Result<std::unique_ptr<Borrower>> Borrower::connect(Config config) {
  std::unique_ptr<Borrower> borrower(new Borrower(std::move(config)));
  VMEM_ASSIGN(borrower->socket_, connect_to(borrower->config_.path));
  VMEM_ASSIGN(borrower->lender_, identity_of(borrower->socket_.get()));
  if (!same_user(borrower->lender_)) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{}: a process of user {} lends there, which would see what is put into its memory; name a "
                            "socket of your own",
                            borrower->config_.path, borrower->lender_.uid));
  }
  VMEM_ASSIGN(auto end, watch_end(borrower->lender_.pid));
  if (!end) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{}: the process that lent there has ended", borrower->config_.path));
  }
  borrower->end_ = std::move(*end);
  borrower->wake_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!borrower->wake_) return fail(VMEM_ERROR_UNSUPPORTED, fmt::format("eventfd: {}", std::strerror(errno)), errno);
  VMEM_TRY(borrower->greet());
  return borrower;
}

Status Borrower::greet() {
  VMEM_TRY(send(socket_.get(), {.kind = Kind::hello}));  // the first message always fits
  wait_readable(socket_.get(), config_.patience);
  auto answer = receive(socket_.get());
  if (!answer) {
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("{}: process {} did not say what it lends: {}", config_.path,
                                                       lender_.pid, answer.error().message));
  }
  if (!*answer) {
    return fail(VMEM_ERROR_TIMEOUT, fmt::format("{}: process {} does not answer; it was waited for {} ms", config_.path,
                                                lender_.pid, config_.patience.count()));
  }
  const Message& message = (**answer).message;
  if (message.kind != Kind::welcome || message.version != Message::kVersion) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{}: process {} lends nothing to this one: {}", config_.path, lender_.pid,
                            message.kind == Kind::refused ? message.said() : "it is another version of vmem"));
  }
  device_ = message.device;
  most_bytes_ = message.most_bytes;
  limit_bytes_ = message.bytes;
  return {};
}

// If all pieces are returned, sends bye, which also replaces unsent gives.
Borrower::~Borrower() {
  stop();
  if (!socket_ || gone_ || !pieces_.empty()) return;
  outbox_.clear();
  outbox_.put({.kind = Kind::bye});
  (void)outbox_.flush(socket_.get());
  if (outbox_.unsent().empty()) return;
  pollfd writable{socket_.get(), POLLOUT, 0};
  (void)::poll(&writable, 1, 1000);
  (void)outbox_.flush(socket_.get());
}

void Borrower::start(std::function<void(std::uint64_t)> on_limit) {
  on_limit_ = std::move(on_limit);
  on_limit_(limit_bytes_);
  thread_ = std::thread([this] { run(); });
}

void Borrower::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  answered_.notify_all();
  (void)::eventfd_write(wake_.get(), 1);
  thread_.join();
}

void Borrower::run() {
  ::prctl(PR_SET_NAME, "vmem-borrower");
  MemoryReserve reserve;
  for (;;) {
    (void)reserve.refill();
    std::array<pollfd, 3> watched{{{wake_.get(), POLLIN, 0}, {socket_.get(), POLLIN, 0}, {end_.get(), POLLIN, 0}}};
    {
      const std::lock_guard lock(mutex_);
      if (!outbox_.unsent().empty()) watched[1].events = POLLIN | POLLOUT;
    }
    (void)::poll(watched.data(), watched.size(), -1);
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      eventfd_t woken = 0;
      (void)::eventfd_read(wake_.get(), &woken);
      (void)outbox_.flush(socket_.get());  // hear() finds a failure
      ended_ = watched[2].revents != 0;
    }
    if (const auto limit = hear()) on_limit_(*limit);
    const std::lock_guard lock(mutex_);
    if (gone_) return;
  }
}

// The limit, if it changed; the held bytes once the lender is gone.
std::optional<std::uint64_t> Borrower::hear() {
  const std::lock_guard lock(mutex_);
  const std::uint64_t before = limit_bytes_;
  for (;;) {
    auto received = receive(socket_.get());
    if (received && *received) {
      take_in(std::move(**received));
      continue;
    }
    if (received && !ended_) return limit_bytes_ == before ? std::nullopt : std::optional(limit_bytes_);
    if (const auto times = lenders_gone.next(); times.logged)
      VMEM_LOG_INFO("process {} lends no more: {}; {} of its GPU's memory stay in use ({} such ends)", lender_.pid,
                    received ? "it has ended" : received.error().message, format_bytes(held_bytes_), times.count);
    gone_ = true;
    answered_.notify_all();
    return held_bytes_;
  }
}

// REQUIRES: mutex_ is held; say() too.
void Borrower::take_in(Received received) {
  const Message& message = received.message;
  if (message.kind == Kind::limit) limit_bytes_ = message.bytes;
  if (message.kind == Kind::limit && held_bytes_ > limit_bytes_) {
    if (const auto times = wanted_back_.next(); times.logged)
      VMEM_LOG_INFO("process {} wants {} of its GPU's memory back within {} ms ({} times so far)", lender_.pid,
                    format_bytes(held_bytes_ - limit_bytes_), message.deadline_us / 1000, times.count);
  }
  if (message.kind != Kind::grant && message.kind != Kind::full) return;
  const auto found = wanted_.find(message.number);
  if (found == wanted_.end()) {
    // The make() that asked has timed out.
    if (message.kind == Kind::grant) give(message.number);
    return;
  }
  found->second = {.answered = true, .granted = message.kind == Kind::grant, .piece = std::move(received.descriptor)};
  answered_.notify_all();
}

// Sends now, or from the thread once the lender reads.
void Borrower::say(const Message& message) {
  if (gone_) return;
  outbox_.put(message);
  (void)outbox_.flush(socket_.get());  // the thread finds a failure
  if (!outbox_.unsent().empty()) (void)::eventfd_write(wake_.get(), 1);
}

Result<CUmemGenericAllocationHandle> Borrower::make(std::uint64_t bytes) {
  const auto none = [&](std::string_view why) {
    return fail(VMEM_ERROR_OUT_OF_MEMORY,
                fmt::format("process {} lends no {} more: {}", lender_.pid, format_bytes(bytes), why));
  };
  std::unique_lock lock(mutex_);
  if (gone_ || stopping_) return none("it is gone");
  const std::uint64_t number = ++numbers_;
  wanted_[number] = {};
  say({.kind = Kind::take, .number = number, .bytes = bytes});
  answered_.wait_for(lock, config_.patience, [&] { return wanted_[number].answered || gone_ || stopping_; });
  const auto node = wanted_.extract(number);
  if (!node.mapped().answered) return none("it does not answer");
  if (!node.mapped().granted) return none("all that it lends is held");
  if (!node.mapped().piece) {
    give(number);
    return none("this process has no file descriptor left for it; raise its limit (ulimit -n)");
  }
  auto imported = gpu::VmmHandle::import_fd(config_.driver, node.mapped().piece.get());
  if (!imported) {
    give(number);
    return none(imported.error().message);
  }
  held_bytes_ += bytes;
  const CUmemGenericAllocationHandle handle = imported->release();
  pieces_[handle] = {number, bytes};
  return handle;
}

Status Borrower::release(CUmemGenericAllocationHandle handle) {
  const auto& driver = *config_.driver;
  const Status released = driver.check(driver->cuMemRelease(handle), "cuMemRelease");
  const std::lock_guard lock(mutex_);
  const auto found = pieces_.find(handle);
  if (found == pieces_.end()) return released;
  held_bytes_ -= found->second.bytes;
  // Memory that the driver did not release is not returned.
  if (released) give(found->second.number);
  pieces_.erase(found);
  return released;
}

}  // namespace vmem::peer
