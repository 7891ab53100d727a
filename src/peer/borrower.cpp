#include "peer/borrower.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "base/sizes.hpp"

namespace vmem::peer {

Result<std::unique_ptr<Borrower>> Borrower::connect(Config config) {
  std::unique_ptr<Borrower> borrower(new Borrower(std::move(config)));
  VMEM_ASSIGN(borrower->socket_, connect_to(borrower->config_.path));
  VMEM_ASSIGN(borrower->lender_, identity_of(borrower->socket_.get()));
  borrower->wake_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!borrower->wake_) return fail(VMEM_ERROR_UNSUPPORTED, fmt::format("eventfd: {}", std::strerror(errno)), errno);
  VMEM_TRY(borrower->greet());
  return borrower;
}

Status Borrower::greet() {
  VMEM_TRY(send(socket_.get(), {.kind = Kind::hello}));
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

Borrower::~Borrower() { stop(); }

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
  for (;;) {
    std::array<pollfd, 2> watched{{{wake_.get(), POLLIN, 0}, {socket_.get(), POLLIN, 0}}};
    (void)::poll(watched.data(), watched.size(), -1);
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    if (const auto limit = hear()) on_limit_(*limit);
    const std::lock_guard lock(mutex_);
    if (gone_) return;
  }
}

// The limit, where it is another one now.
std::optional<std::uint64_t> Borrower::hear() {
  const std::lock_guard lock(mutex_);
  const std::uint64_t before = limit_bytes_;
  for (;;) {
    auto received = receive(socket_.get());
    if (received && *received) {
      take_in(std::move(**received));
      continue;
    }
    if (received) return limit_bytes_ == before ? std::nullopt : std::optional(limit_bytes_);
    VMEM_LOG_INFO("process {} lends no more: {}; {} of its GPU's memory stay in use", lender_.pid,
                  received.error().message, format_bytes(held_bytes_));
    gone_ = true;
    answered_.notify_all();
    return held_bytes_;
  }
}

// REQUIRES: mutex_, as below.
void Borrower::take_in(Received received) {
  const Message& message = received.message;
  if (message.kind == Kind::limit) limit_bytes_ = message.bytes;
  if (message.kind != Kind::grant && message.kind != Kind::full) return;
  const auto found = wanted_.find(message.number);
  if (found == wanted_.end()) {
    // Whoever asked did not wait as long as that.
    if (message.kind == Kind::grant) (void)give(message.number);
    return;
  }
  found->second = {.answered = true, .piece = std::move(received.descriptor)};
  answered_.notify_all();
}

Status Borrower::give(std::uint64_t number) {
  return gone_ ? Status{} : send(socket_.get(), {.kind = Kind::give, .number = number});
}

Result<CUmemGenericAllocationHandle> Borrower::make(std::uint64_t bytes) {
  const auto none = [&](std::string_view why) {
    return fail(VMEM_ERROR_OUT_OF_MEMORY,
                fmt::format("process {} lends no {} more: {}", lender_.pid, format_bytes(bytes), why));
  };
  std::unique_lock lock(mutex_);
  if (gone_ || stopping_) return none("it is gone");
  const std::uint64_t number = ++numbers_;
  VMEM_TRY(send(socket_.get(), {.kind = Kind::take, .number = number, .bytes = bytes}));
  wanted_[number] = {};
  answered_.wait_for(lock, config_.patience, [&] { return wanted_[number].answered || gone_ || stopping_; });
  const auto node = wanted_.extract(number);
  if (!node.mapped().answered) return none("it does not answer");
  if (!node.mapped().piece) return none("all that it lends is held");
  auto imported = gpu::VmmHandle::import_fd(config_.driver, node.mapped().piece.get());
  if (!imported) {
    (void)give(number);
    return std::unexpected(imported.error());
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
  // What the driver keeps is not given back.
  const Status given = released ? give(found->second.number) : Status{};
  pieces_.erase(found);
  return released ? given : released;
}

}  // namespace vmem::peer
