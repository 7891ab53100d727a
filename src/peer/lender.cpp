#include "peer/lender.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "base/sizes.hpp"
#include "gpu/handles.hpp"

namespace vmem::peer {
namespace {

constexpr std::uint64_t kGranule = std::uint64_t{2} << 20;

bool same_user(uid_t uid) { return uid == ::geteuid() || uid == 0; }

bool readable(int descriptor) {
  pollfd watched{descriptor, POLLIN, 0};
  return ::poll(&watched, 1, 0) == 1;
}

}  // namespace

Result<std::unique_ptr<Lender>> Lender::create(Config config) {
  std::unique_ptr<Lender> lender(new Lender(std::move(config)));
  const auto& driver = *lender->config_.driver;
  CUuuid uuid{};
  VMEM_TRY(driver.check(driver->cuDeviceGetUuid(&uuid, lender->config_.device), "cuDeviceGetUuid"));
  std::memcpy(lender->device_.data(), uuid.bytes, lender->device_.size());
  VMEM_ASSIGN(lender->listener_, listen_at(lender->config_.path));
  lender->wake_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!lender->wake_) return fail(VMEM_ERROR_UNSUPPORTED, fmt::format("eventfd: {}", std::strerror(errno)), errno);
  lender->thread_ = std::thread([raw = lender.get()] { raw->run(); });
  return lender;
}

Lender::~Lender() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  (void)::eventfd_write(wake_.get(), 1);
  thread_.join();
  (void)::unlink(config_.path.c_str());
}

void Lender::set_limit(std::uint64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    bytes = std::min(bytes, config_.most_bytes);
    if (std::exchange(limit_bytes_, bytes) == bytes) return;
  }
  (void)::eventfd_write(wake_.get(), 1);
}

Lender::Usage Lender::usage() const {
  const std::lock_guard lock(mutex_);
  return sum();
}

// REQUIRES: mutex_, as all below but run and wait.
Lender::Usage Lender::sum() const {
  Usage sum{.limit_bytes = limit_bytes_, .borrowers = std::uint32_t(borrowers_.size())};
  for (const auto& each : borrowers_) {
    sum.held_bytes += each->held_bytes;
    if (!each->socket) sum.overdue_bytes += each->held_bytes;
    if (each->socket && each->overdue)
      sum.overdue_bytes += each->held_bytes - std::min(each->held_bytes, each->told_bytes);
  }
  return sum;
}

std::uint64_t Lender::held_bytes() const { return sum().held_bytes; }

void Lender::run() {
  ::prctl(PR_SET_NAME, "vmem-lender");
  // Pieces belong to no context, but the driver wants one current.
  (void)(*config_.driver)->cuCtxSetCurrent(config_.context);
  for (;;) {
    wait();
    bool changed = false;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      changed = look();
    }
    if (changed) config_.on_change();
  }
}

void Lender::wait() {
  std::vector<pollfd> watched{{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  std::optional<Clock::time_point> due;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& each : borrowers_) {
      watched.push_back({each->end.get(), POLLIN, 0});
      if (each->socket) watched.push_back({each->socket.get(), POLLIN, 0});
      if (each->due && !each->overdue) due = due ? std::min(*due, *each->due) : *each->due;
    }
  }
  const auto left = due ? std::chrono::ceil<std::chrono::milliseconds>(*due - Clock::now()).count() : -1;
  (void)::poll(watched.data(), watched.size(), due ? int(std::max<long>(0, left)) : -1);
  eventfd_t woken = 0;
  (void)::eventfd_read(wake_.get(), &woken);
}

// True if what is held or overdue has changed.
bool Lender::look() {
  const Usage before = sum();
  if (readable(listener_.get())) accept_one();
  for (auto& each : borrowers_) {
    if (!each->socket) continue;
    if (auto heard = hear(*each); !heard) hang_up(*each, heard.error());
  }
  // An end is looked for after what was said before it.
  std::erase_if(borrowers_,
                [](const auto& each) { return readable(each->end.get()) || (!each->socket && each->held_bytes == 0); });
  tell_limits();
  find_overdue();
  const Usage now = sum();
  return now.held_bytes != before.held_bytes || now.overdue_bytes != before.overdue_bytes;
}

void Lender::accept_one() {
  auto socket = accept_from(listener_.get());
  if (!socket) return;
  const auto who = identity_of(socket->get());
  if (!who || !same_user(who->uid)) {
    Message no{.kind = Kind::refused};
    no.say(fmt::format("it lends to the processes of user {} only", ::geteuid()));
    (void)send(socket->get(), no);
    VMEM_LOG_WARN("a process of user {} wanted to borrow this GPU's memory, and was refused",
                  who ? who->uid : uid_t(-1));
    return;
  }
  auto end = watch_end(who->pid);
  if (!end || !*end) return;  // and the borrower hears that it was hung up on
  auto borrower = std::make_unique<Borrower>();
  borrower->socket = std::move(*socket);
  borrower->end = std::move(**end);
  borrower->who = *who;
  borrowers_.push_back(std::move(borrower));
}

Status Lender::hear(Borrower& borrower) {
  for (;;) {
    VMEM_ASSIGN(auto received, receive(borrower.socket.get()));
    if (!received) return {};
    VMEM_TRY(answer(borrower, received->message));
  }
}

Status Lender::answer(Borrower& borrower, const Message& message) {
  if (message.kind == Kind::hello && !borrower.welcomed) return welcome(borrower, message);
  if (message.kind == Kind::take && borrower.welcomed) return lend(borrower, message);
  if (message.kind == Kind::give) return take_back(borrower, message.number);
  return fail(VMEM_ERROR_INTERNAL, fmt::format("it sent a message of kind {} out of turn", int(message.kind)));
}

Status Lender::welcome(Borrower& borrower, const Message& hello) {
  if (hello.version != Message::kVersion) {
    Message no{.kind = Kind::refused};
    no.say(fmt::format("it speaks version {} of the protocol, this process version {}; use the same vmem for both",
                       Message::kVersion, hello.version));
    (void)send(borrower.socket.get(), no);
    return fail(VMEM_ERROR_INTERNAL, fmt::format("it speaks version {}", hello.version));
  }
  borrower.welcomed = true;
  borrower.told_bytes = limit_bytes_ - std::min(limit_bytes_, held_bytes());
  return send(
      borrower.socket.get(),
      {.kind = Kind::welcome, .bytes = borrower.told_bytes, .most_bytes = config_.most_bytes, .device = device_});
}

Status Lender::lend(Borrower& borrower, const Message& wanted) {
  const bool known = borrower.pieces.contains(wanted.number);
  if (known || wanted.bytes == 0 || wanted.bytes % kGranule != 0)
    return fail(VMEM_ERROR_INTERNAL, fmt::format("it asked for {} bytes as piece {}", wanted.bytes, wanted.number));
  const std::uint64_t held = held_bytes();
  if (wanted.bytes > limit_bytes_ - std::min(limit_bytes_, held))
    return send(borrower.socket.get(), {.kind = Kind::full, .number = wanted.number});
  auto piece = make_piece(wanted.bytes);
  if (!piece && piece.error().status != VMEM_ERROR_OUT_OF_MEMORY)
    VMEM_LOG_WARN("nothing can be lent: {}", piece.error().message);
  if (!piece) return send(borrower.socket.get(), {.kind = Kind::full, .number = wanted.number});
  const FileDescriptor descriptor(*piece);
  borrower.pieces[wanted.number] = wanted.bytes;
  borrower.held_bytes += wanted.bytes;
  return send(borrower.socket.get(), {.kind = Kind::grant, .number = wanted.number, .bytes = wanted.bytes},
              descriptor.get());
}

// The descriptor alone keeps it, and then who imports it.
Result<int> Lender::make_piece(std::uint64_t bytes) const {
  VMEM_ASSIGN(const auto handle,
              gpu::VmmHandle::create(config_.driver, bytes, gpu::device_memory(int(config_.device), true)));
  return handle.export_fd();
}

Status Lender::take_back(Borrower& borrower, std::uint64_t number) {
  const auto found = borrower.pieces.find(number);
  if (found == borrower.pieces.end())
    return fail(VMEM_ERROR_INTERNAL, fmt::format("it gave back piece {}, which it does not hold", number));
  borrower.held_bytes -= found->second;
  borrower.pieces.erase(found);
  return {};
}

// Beyond the limit: who holds most gives first. Below it: each may have what is left.
void Lender::tell_limits() {
  const std::uint64_t held = held_bytes();
  const std::uint64_t left = limit_bytes_ - std::min(limit_bytes_, held);
  std::uint64_t excess = held - std::min(limit_bytes_, held);
  std::vector<Borrower*> most_first;
  for (const auto& each : borrowers_) {
    if (each->socket && each->welcomed) most_first.push_back(each.get());
  }
  std::ranges::stable_sort(most_first, std::greater(), &Borrower::held_bytes);
  for (Borrower* const each : most_first) {
    const std::uint64_t given = std::min(excess, each->held_bytes);
    excess -= given;
    const std::uint64_t may_hold = each->held_bytes - given + left;
    const bool more = each->held_bytes > may_hold;
    if (!more) {
      each->due.reset();
      each->overdue = false;
    } else if (!each->due) {
      each->due = Clock::now() + config_.deadline;
    }
    if (std::exchange(each->told_bytes, may_hold) == may_hold) continue;
    if (auto told = tell(*each, may_hold, config_.deadline); !told) hang_up(*each, told.error());
  }
}

Status Lender::tell(Borrower& borrower, std::uint64_t bytes, std::chrono::microseconds deadline) {
  return send(borrower.socket.get(),
              {.kind = Kind::limit, .bytes = bytes, .deadline_us = std::uint64_t(deadline.count())});
}

void Lender::find_overdue() {
  for (const auto& each : borrowers_) {
    if (!each->socket || !each->due || each->overdue || Clock::now() < *each->due) continue;
    each->overdue = true;
    VMEM_LOG_WARN("process {} was asked to give back {} of this GPU's memory and has not done so in {} ms",
                  each->who.pid, format_bytes(each->held_bytes - each->told_bytes),
                  std::chrono::duration_cast<std::chrono::milliseconds>(config_.deadline).count());
  }
}

// What it holds stays its own until it ends.
void Lender::hang_up(Borrower& borrower, const Error& why) const {
  borrower.socket.reset();
  if (borrower.held_bytes == 0) return;
  VMEM_LOG_INFO("process {} holds {} of this GPU's memory until it ends: {}", borrower.who.pid,
                format_bytes(borrower.held_bytes), why.message);
}

}  // namespace vmem::peer
