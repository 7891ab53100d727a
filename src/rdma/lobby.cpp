#include "rdma/lobby.hpp"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/log.hpp"
#include "rdma/farewell.hpp"

namespace vmem::rdma {
namespace {

constexpr int kBacklog = 128;
constexpr int kMostAcceptedAtOnce = 16;
constexpr std::uint64_t kRestUs = 100'000;
constexpr std::size_t kReadBytes = 4096;

std::string words(int code) { return std::strerror(code); }
void switch_on(int socket, int level, int option) {
  const int on = 1;
  (void)::setsockopt(socket, level, option, &on, sizeof(on));
}

}  // namespace

Result<std::unique_ptr<Lobby>> Lobby::create(Config config) {
  std::unique_ptr<Lobby> lobby(new Lobby(std::move(config)));
  lobby->epoll_ = FileDescriptor(::epoll_create1(EPOLL_CLOEXEC));
  if (!lobby->epoll_) return fail(VMEM_ERROR_INTERNAL, "epoll_create1: " + words(errno), errno);
  if (!lobby->config_.listen.empty()) VMEM_TRY(lobby->listen());
  return lobby;
}

Status Lobby::check_secret(const SocketAddress& address, const char* what) const {
  if (config_.keyring || address.is_loopback()) return {};
  return fail(
      VMEM_ERROR_INVALID_OPTION,
      fmt::format(
          "{} {} needs a secret: without one only addresses of this machine itself are used (127.0.0.1, [::1]); "
          "give all nodes the same secret file",
          what, address.text()));
}

Status Lobby::may_connect(const SocketAddress& address) const { return check_secret(address, "connecting to"); }

Status Lobby::listen() {
  VMEM_ASSIGN(const SocketAddress address, SocketAddress::parse(config_.listen));
  VMEM_TRY(check_secret(address, "listening on"));
  listener_ = FileDescriptor(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  switch_on(listener_.get(), SOL_SOCKET, SO_REUSEADDR);
  if (!listener_ || ::bind(listener_.get(), address.get(), address.size()) != 0 ||
      ::listen(listener_.get(), kBacklog) != 0)
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("cannot listen on {}: {}", config_.listen, words(errno)), errno);
  VMEM_ASSIGN(const SocketAddress bound, SocketAddress::bound_to(listener_.get()));
  address_ = bound.text();
  epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &event) != 0)
    return fail(VMEM_ERROR_INTERNAL, "epoll_ctl: " + words(errno), errno);
  return {};
}

void Lobby::connect(std::uint64_t key, const SocketAddress& address, std::uint64_t deadline_us) {
  FileDescriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  visitors_.push_back(
      {.key = key,
       .address = address,
       .handshake = Handshake(Handshake::Role::initiator, *config_.crypto, secret(), config_.self, config_.open),
       .socket = std::move(socket),
       .deadline_us = deadline_us});
  Visitor& visitor = visitors_.back();
  next_deadline_us_ = 0;
  visitor.out = visitor.handshake.start();
  if (!visitor.socket || (::connect(visitor.socket.get(), address.get(), address.size()) != 0 && errno != EINPROGRESS))
    return fail_visitor(visitor, Reason::lost, {VMEM_ERROR_LOST, errno, "connect: " + words(errno)});
  switch_on(visitor.socket.get(), IPPROTO_TCP, TCP_NODELAY);
  watch(visitor, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT);
}

void Lobby::cancel(std::uint64_t key) {
  for (Visitor& visitor : visitors_) {
    if (visitor.key == key && !visitor.leaving) leave(visitor);
  }
}

void Lobby::close() {
  if (listener_) (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
  listener_.reset();
  accept_again_us_ = 0;
  for (Visitor& visitor : visitors_) fail_visitor(visitor, Reason::closed, {VMEM_ERROR_LOST, 0, "this node ends"});
}

// Only who has proved itself was told of anything that it could use.
void Lobby::leave(Visitor& visitor) {
  visitor.leaving = true;
  if (visitor.key == 0) --came_in_;
  visitor.deadline_us = visitor.handshake.trusted() ? config_.clock->now_us() + kFarewellUs : 0;
  if (visitor.socket) (void)::shutdown(visitor.socket.get(), SHUT_WR);
}

bool Lobby::is_over(const Visitor& visitor) const {
  return !visitor.socket || config_.clock->now_us() >= visitor.deadline_us || has_left(visitor.socket);
}

void Lobby::watch(Visitor& visitor, int operation, std::uint32_t events) const {
  epoll_event event{.events = events, .data = {.ptr = &visitor}};
  if (::epoll_ctl(epoll_.get(), operation, visitor.socket.get(), &event) != 0)
    fail_visitor(visitor, Reason::lost, {VMEM_ERROR_INTERNAL, errno, "epoll_ctl: " + words(errno)});
}

void Lobby::accept() {
  for (int i = 0; i < kMostAcceptedAtOnce; ++i) {
    FileDescriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) {
      make_room();
      admit(std::move(socket));
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      VMEM_LOG_WARN("no connection can be accepted on {} now: {}", address_, words(errno));
      accept_again_us_ = config_.clock->now_us() + kRestUs;
      (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
    }
    if (errno != ECONNABORTED && errno != EINTR) return;
  }
}

void Lobby::make_room() {
  if (came_in_ < config_.most_visitors) return;
  const auto waits_longest = [](const Visitor& visitor) {
    return visitor.key == 0 && !visitor.failed && !visitor.leaving;
  };
  const auto untrusted = std::ranges::find_if(
      visitors_, [&](const Visitor& visitor) { return waits_longest(visitor) && !visitor.handshake.trusted(); });
  const auto goes = untrusted != visitors_.end() ? untrusted : std::ranges::find_if(visitors_, waits_longest);
  if (goes == visitors_.end()) return;  // all of them are about to be collected
  fail_visitor(
      *goes, Reason::refused,
      {VMEM_ERROR_LOST, 0, fmt::format("{} connections are being set up, and later ones need room", came_in_)});
}

void Lobby::admit(FileDescriptor socket) {
  SocketAddress address;
  if (auto known = SocketAddress::connected_to(socket.get())) address = *known;
  switch_on(socket.get(), IPPROTO_TCP, TCP_NODELAY);
  visitors_.push_back(
      {.key = 0,
       .address = address,
       .handshake = Handshake(Handshake::Role::responder, *config_.crypto, secret(), config_.self, config_.open),
       .socket = std::move(socket),
       .deadline_us = config_.clock->now_us() + config_.handshake_us});
  ++came_in_;
  next_deadline_us_ = 0;
  watch(visitors_.back(), EPOLL_CTL_ADD, EPOLLIN);
}

void Lobby::fail_visitor(Visitor& visitor, Reason reason, Error error) {
  if (visitor.failed) return;
  visitor.failed = std::move(error);
  visitor.reason = reason;
}

void Lobby::read(Visitor& visitor) {
  std::array<std::byte, kReadBytes> buffer;
  while (!visitor.failed && visitor.handshake.wanted() > 0) {
    const std::size_t most = std::min(buffer.size(), visitor.handshake.wanted());
    const ssize_t got = ::recv(visitor.socket.get(), buffer.data(), most, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got < 0)
      return fail_visitor(visitor, Reason::lost, {VMEM_ERROR_LOST, errno, "the connection broke: " + words(errno)});
    if (got == 0)
      return fail_visitor(
          visitor, Reason::refused,
          {VMEM_ERROR_LOST, 0,
           visitor.handshake.trusted() ? "the peer ended the connection before it was set up"
                                       : "the peer ended the connection before it proved to know the secret; "
                                         "if it refused this node, its log says why"});
    if (auto done = visitor.handshake.receive(ConstBytes(buffer).first(static_cast<std::size_t>(got)), visitor.out);
        !done)
      fail_visitor(visitor, Reason::refused, std::move(done).error());
  }
}

void Lobby::write(Visitor& visitor) {
  while (!visitor.out.empty()) {
    const ssize_t sent = ::send(visitor.socket.get(), visitor.out.data(), visitor.out.size(), MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOTCONN)) return;
    if (sent < 0)
      return fail_visitor(visitor, Reason::lost, {VMEM_ERROR_LOST, errno, "the connection broke: " + words(errno)});
    visitor.out.erase(visitor.out.begin(), visitor.out.begin() + sent);
  }
}

void Lobby::serve(Visitor& visitor, std::uint32_t events) {
  if (visitor.failed || visitor.leaving) return;
  int code = 0;
  socklen_t size = sizeof(code);
  if ((events & EPOLLERR) != 0 && ::getsockopt(visitor.socket.get(), SOL_SOCKET, SO_ERROR, &code, &size) == 0 &&
      code != 0)
    return fail_visitor(visitor, Reason::lost, {VMEM_ERROR_LOST, code, "the connection broke: " + words(code)});
  read(visitor);
  write(visitor);
  if (!visitor.failed) watch(visitor, EPOLL_CTL_MOD, visitor.out.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
}

void Lobby::expire() {
  const std::uint64_t now = config_.clock->now_us();
  if (accept_again_us_ != 0 && now >= accept_again_us_) {
    accept_again_us_ = 0;
    epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
    (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &event);
  }
  if (now < next_deadline_us_) return;
  next_deadline_us_ = UINT64_MAX;
  for (Visitor& visitor : visitors_) {
    if (visitor.leaving) continue;
    if (now >= visitor.deadline_us) {
      fail_visitor(
          visitor, Reason::timeout,
          {VMEM_ERROR_TIMEOUT, 0, "the connection was not set up before its deadline: the peer does not answer"});
    } else {
      next_deadline_us_ = std::min(next_deadline_us_, visitor.deadline_us);
    }
  }
}

void Lobby::collect(std::vector<Outcome>& outcomes) {
  for (auto visitor = visitors_.begin(); visitor != visitors_.end();) {
    if (visitor->leaving) {
      if (!is_over(*visitor)) {
        ++visitor;
        continue;
      }
      // A process that was forked from this one may have the socket too: closing it neither tells the other end nor ends its events.
      (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, visitor->socket.get(), nullptr);
      (void)::shutdown(visitor->socket.get(), SHUT_RDWR);
      visitor = visitors_.erase(visitor);
      continue;
    }
    const bool done = visitor->handshake.done() && visitor->out.empty();
    if (!visitor->failed && !done) {
      ++visitor;
      continue;
    }
    Outcome outcome{.key = visitor->key, .address = visitor->address.text(), .reason = visitor->reason};
    if (visitor->failed) {
      outcome.error = *visitor->failed;
      leave(*visitor);
    } else {
      (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, visitor->socket.get(), nullptr);
      outcome.socket = std::move(visitor->socket);
      outcome.acquaintance = visitor->handshake.take();
      if (visitor->key == 0) --came_in_;
      visitor = visitors_.erase(visitor);
    }
    outcomes.push_back(std::move(outcome));
  }
}

bool Lobby::progress(std::vector<Outcome>& outcomes) {
  std::array<epoll_event, 64> events;
  const int ready = ::epoll_wait(epoll_.get(), events.data(), events.size(), 0);
  for (int i = 0; i < ready; ++i) {
    if (events[i].data.ptr != nullptr) serve(*static_cast<Visitor*>(events[i].data.ptr), events[i].events);
  }
  const std::size_t before = outcomes.size();
  for (int i = 0; i < ready; ++i) {
    if (events[i].data.ptr == nullptr) accept();
  }
  expire();
  collect(outcomes);
  return ready > 0 || outcomes.size() != before;
}

}  // namespace vmem::rdma
