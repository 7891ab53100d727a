#include "peer/lender.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "base/log.hpp"
#include "base/memory_reserve.hpp"
#include "base/sizes.hpp"
#include "gpu/handles.hpp"

namespace vmem::peer {
namespace {

constexpr std::uint64_t kGranule = std::uint64_t{2} << 20;

constexpr std::size_t kBorrowersMax = 64;
constexpr std::size_t kUnsentMax = 4096;  // answers to a borrower that does not read
constexpr int kMessagesPerLook = 64;      // per borrower
constexpr auto kGreeting = std::chrono::seconds(5);
constexpr auto kFullFor = std::chrono::milliseconds(100);

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
  forget_name(config_.path, listener_);
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

// REQUIRES: mutex_ is held, as for all functions below but run and wait.
Lender::Usage Lender::sum() const {
  Usage sum{.limit_bytes = limit_bytes_, .borrowers = std::uint32_t(borrowers_.size())};
  std::uint64_t most = 0;
  for (const auto& each : borrowers_) {
    sum.held_bytes += each->held_bytes;
    if (each->held_bytes > most) {
      most = each->held_bytes;
      sum.largest = each->who.pid;
    }
    if (!each->socket) sum.overdue_bytes += each->held_bytes;
    if (each->socket && each->overdue)
      sum.overdue_bytes += each->held_bytes - std::min(each->held_bytes, each->told_bytes);
  }
  return sum;
}

std::uint64_t Lender::held_bytes() const { return sum().held_bytes; }

void Lender::run() {
  ::prctl(PR_SET_NAME, "vmem-lender");
  // Pieces belong to no context, but the driver requires a current context.
  (void)(*config_.driver)->cuCtxSetCurrent(config_.context);
  MemoryReserve reserve;
  for (;;) {
    (void)reserve.refill();
    wait();
    bool changed = false;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      changed = look();
    }
    if (changed && config_.on_change) config_.on_change();
  }
}

void Lender::wait() {
  std::vector<pollfd> watched{{wake_.get(), POLLIN, 0}};
  std::optional<Clock::time_point> due;
  {
    const std::lock_guard lock(mutex_);
    if (accepts_from_ <= Clock::now()) watched.push_back({listener_.socket.get(), POLLIN, 0});
    for (const auto& each : borrowers_) {
      watched.push_back({each->end.get(), POLLIN, 0});
      const bool unsent = !each->outbox.unsent().empty();
      if (each->socket) watched.push_back({each->socket.get(), short(unsent ? POLLIN | POLLOUT : POLLIN), 0});
    }
    due = next_due();
  }
  const auto left = due ? std::chrono::ceil<std::chrono::milliseconds>(*due - Clock::now()).count() : -1;
  (void)::poll(watched.data(), watched.size(), due ? int(std::max<long>(0, left)) : -1);
  eventfd_t woken = 0;
  (void)::eventfd_read(wake_.get(), &woken);
}

std::optional<Lender::Clock::time_point> Lender::next_due() const {
  std::optional<Clock::time_point> due;
  const auto consider = [&](Clock::time_point at) { due = due ? std::min(*due, at) : at; };
  if (accepts_from_ > Clock::now()) consider(accepts_from_);
  for (const auto& each : borrowers_) {
    if (each->due && !each->overdue) consider(*each->due);
    if (each->socket && !each->welcomed) consider(each->since + kGreeting);
  }
  return due;
}

// True if held or overdue bytes have changed.
bool Lender::look() {
  const Usage before = sum();
  if (accepts_from_ <= Clock::now() && readable(listener_.socket.get())) accept_one();
  for (auto& each : borrowers_) {
    if (!each->socket) continue;
    if (auto heard = hear(*each); !heard) hang_up(*each, heard.error());
    if (each->socket && !each->welcomed && Clock::now() >= each->since + kGreeting)
      hang_up(*each, {VMEM_ERROR_TIMEOUT, 0, "it did not say what it wants"});
  }
  // Checks for ended processes only after hear() has read their last messages.
  std::erase_if(borrowers_,
                [](const auto& each) { return readable(each->end.get()) || (!each->socket && each->held_bytes == 0); });
  tell_limits();
  find_overdue();
  flush_all();
  const Usage now = sum();
  return now.held_bytes != before.held_bytes || now.overdue_bytes != before.overdue_bytes;
}

// Makes room for one more borrower. Drops the longest silent borrower without pieces, unwelcomed
// ones first: idle connections cannot lock out others.
bool Lender::make_room() {
  if (borrowers_.size() < kBorrowersMax) return true;
  const auto rank = [](const std::unique_ptr<Borrower>& each) {
    return std::tuple(each->held_bytes != 0 || !each->socket, each->welcomed, each->heard);
  };
  const auto goes = std::ranges::min_element(borrowers_, {}, rank);
  if ((*goes)->held_bytes != 0 || !(*goes)->socket) return false;
  hang_up(**goes, {VMEM_ERROR_TIMEOUT, 0, "others want its place"});
  borrowers_.erase(goes);
  return true;
}

void Lender::accept_one() {
  auto socket = make_room() ? accept_from(listener_.socket.get()) : fail(VMEM_ERROR_UNSUPPORTED, "there are too many");
  if (!socket) {
    accepts_from_ = Clock::now() + kFullFor;
    return;
  }
  const auto who = identity_of(socket->get());
  if (!who || !same_user(*who)) {
    Message no{.kind = Kind::refused};
    no.say(fmt::format("it lends to the processes of user {} only", ::geteuid()));
    (void)send(socket->get(), no);
    if (const auto times = strangers_.next(); times.logged)
      VMEM_LOG_WARN("a process of user {} wanted to borrow this GPU's memory, and was refused ({} so far)",
                    who ? who->uid : uid_t(-1), times.count);
    return;
  }
  auto end = watch_end(who->pid);
  if (!end || !*end) return;  // the borrower sees the connection end
  auto borrower = std::make_unique<Borrower>();
  borrower->socket = std::move(*socket);
  borrower->end = std::move(**end);
  borrower->who = *who;
  borrowers_.push_back(std::move(borrower));
}

Status Lender::hear(Borrower& borrower) {
  for (int left = kMessagesPerLook; left > 0; --left) {
    VMEM_ASSIGN(auto received, receive(borrower.socket.get()));
    if (!received) return {};
    borrower.heard = Clock::now();
    VMEM_TRY(answer(borrower, received->message));
  }
  return {};
}

// Takes the returns among the messages that the borrower has sent, and lets it send no more.
void Lender::hear_returns(Borrower& borrower) {
  ::shutdown(borrower.socket.get(), SHUT_RD);  // what was sent before stays readable
  for (;;) {
    const auto received = receive(borrower.socket.get());
    if (!received || !*received) return;
    const Message& message = (*received)->message;
    const bool returns = message.kind == Kind::give || message.kind == Kind::bye;
    if (returns && !answer(borrower, message)) return;
  }
}

Status Lender::answer(Borrower& borrower, const Message& message) {
  if (message.kind == Kind::hello && !borrower.welcomed) return welcome(borrower, message);
  if (message.kind == Kind::take && borrower.welcomed) return lend(borrower, message);
  if (message.kind == Kind::give) return take_back(borrower, message.number);
  if (message.kind == Kind::bye) {
    borrower.pieces.clear();
    borrower.held_bytes = 0;
    return {};
  }
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
  borrower.outbox.put(
      {.kind = Kind::welcome, .bytes = borrower.told_bytes, .most_bytes = config_.most_bytes, .device = device_});
  return {};
}

Status Lender::lend(Borrower& borrower, const Message& wanted) {
  const bool known = borrower.pieces.contains(wanted.number);
  if (known || wanted.bytes == 0 || wanted.bytes % kGranule != 0)
    return fail(VMEM_ERROR_INTERNAL, fmt::format("it asked for {} bytes as piece {}", wanted.bytes, wanted.number));
  if (borrower.outbox.unsent().size() >= kUnsentMax) return fail(VMEM_ERROR_INTERNAL, "it asks and does not read");
  const std::uint64_t left = limit_bytes_ - std::min(limit_bytes_, held_bytes());
  auto piece = wanted.bytes <= left ? make_piece(wanted.bytes) : fail(VMEM_ERROR_OUT_OF_MEMORY, "");
  if (!piece && piece.error().status != VMEM_ERROR_OUT_OF_MEMORY) {
    if (const auto times = not_lent_.next(); times.logged)
      VMEM_LOG_WARN("nothing can be lent: {} ({} times so far)", piece.error().message, times.count);
  }
  if (!piece) {
    borrower.outbox.put({.kind = Kind::full, .number = wanted.number});
    return {};
  }
  borrower.pieces[wanted.number] = wanted.bytes;
  borrower.held_bytes += wanted.bytes;
  borrower.outbox.put({.kind = Kind::grant, .number = wanted.number, .bytes = wanted.bytes}, FileDescriptor(*piece));
  return {};
}

// Only the descriptor keeps the memory alive, and then the process that imports it.
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

// Above the limit, the largest holders return first. Below it, each borrower may take all that is
// left.
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
    } else if (!each->due || may_hold < each->told_bytes) {
      each->due = Clock::now() + config_.deadline;  // restarts with a stricter limit
    }
    if (std::exchange(each->told_bytes, may_hold) == may_hold) continue;
    each->outbox.put({.kind = Kind::limit, .bytes = may_hold, .deadline_us = std::uint64_t(config_.deadline.count())});
  }
}

void Lender::flush_all() {
  for (const auto& each : borrowers_) {
    if (!each->socket) continue;
    const auto flushed = each->outbox.flush(each->socket.get());
    if (flushed) continue;
    hang_up(*each, flushed.error());
    (void)::eventfd_write(wake_.get(), 1);  // the next look tells the others what became free
  }
}

void Lender::find_overdue() {
  for (const auto& each : borrowers_) {
    if (!each->socket || !each->due || each->overdue || Clock::now() < *each->due) continue;
    each->overdue = true;
    if (const auto times = late_.next(); times.logged)
      VMEM_LOG_WARN(
          "process {} was asked to give back {} of this GPU's memory and has not done so in {} ms ({} such delays)",
          each->who.pid, format_bytes(each->held_bytes - each->told_bytes),
          std::chrono::duration_cast<std::chrono::milliseconds>(config_.deadline).count(), times.count);
  }
}

// The borrower keeps its pieces until it ends, except what it has given back and unsent grants.
void Lender::hang_up(Borrower& borrower, const Error& why) {
  hear_returns(borrower);
  borrower.socket.reset();
  for (const Outbox::Unsent& each : borrower.outbox.unsent()) {
    if (each.message.kind == Kind::grant) (void)take_back(borrower, each.message.number);
  }
  borrower.outbox.clear();
  if (borrower.held_bytes == 0) return;
  if (const auto times = held_.next(); times.logged)
    VMEM_LOG_INFO("process {} holds {} of this GPU's memory until it ends: {} ({} such processes)", borrower.who.pid,
                  format_bytes(borrower.held_bytes), why.message, times.count);
}

}  // namespace vmem::peer
