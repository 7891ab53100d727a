#include "bench/round_trip.hpp"

#include <fmt/format.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <vector>

#include "rdma/transport/socket_address.hpp"

namespace vmem::bench {
namespace {

constexpr timeval kMostSilence{.tv_sec = 10, .tv_usec = 0};

// Sends a page for each byte until the connection ends. Makes only system calls, because it runs
// between fork and _exit.
[[noreturn]] void serve(int socket, const std::byte* page, std::uint64_t bytes) {
  for (char asked = 0; ::recv(socket, &asked, 1, 0) == 1;) {
    for (std::uint64_t sent = 0; sent < bytes;) {
      const ssize_t put = ::send(socket, page + sent, bytes - sent, MSG_NOSIGNAL);
      if (put <= 0) ::_exit(1);
      sent += static_cast<std::uint64_t>(put);
    }
  }
  ::_exit(0);
}

}  // namespace

// A request is sent at once, and a server that says nothing is an error.
Status RoundTrip::prepare() const {
  const int on = 1;
  // Local sockets have no such option.
  (void)::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &kMostSilence, sizeof(kMostSilence)) != 0)
    return socket_failed("a socket's time limit");
  return {};
}

Result<RoundTrip> RoundTrip::start(SocketKind kind, std::uint64_t page_bytes) {
  VMEM_ASSIGN(SocketPair pair, connect_pair(kind));
  const std::vector<std::byte> page(page_bytes, std::byte{1});
  RoundTrip made(std::move(pair.from), fmt::format("plain {} sockets between two processes here",
                                                   kind == SocketKind::local ? "local" : "TCP"));
  made.child_ = ::fork();
  if (made.child_ == 0) {
    ::close(made.socket_.get());  // else this process's end would keep the connection open
    serve(pair.to.get(), page.data(), page.size());
  }
  if (made.child_ < 0) return socket_failed("fork");
  VMEM_TRY(made.prepare());
  return made;
}

Result<RoundTrip> RoundTrip::connect(const std::string& address) {
  VMEM_ASSIGN(const rdma::SocketAddress resolved, rdma::SocketAddress::resolve(address));
  RoundTrip made(FileDescriptor(::socket(resolved.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0)),
                 fmt::format("a plain TCP socket to {}", address));
  if (!made.socket_ || ::connect(made.socket_.get(), resolved.get(), resolved.size()) != 0)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("--page-server {}: {}; start a server there that answers each byte with a page", address,
                            std::strerror(errno)),
                errno);
  VMEM_TRY(made.prepare());
  return made;
}

RoundTrip::~RoundTrip() {
  if (child_ <= 0) return;
  ::kill(child_, SIGKILL);
  ::waitpid(child_, nullptr, 0);
}

Status RoundTrip::fetch(std::span<std::byte> page) const {
  const char ask = 1;
  if (::send(socket_.get(), &ask, 1, MSG_NOSIGNAL) != 1) return socket_failed("asking for a page");
  for (std::size_t taken = 0; taken < page.size();) {
    const ssize_t got = ::recv(socket_.get(), page.data() + taken, page.size() - taken, 0);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
      return fail(VMEM_ERROR_TIMEOUT, fmt::format("{} sent {} of {} bytes of a page, and no more for {} s", name_,
                                                  taken, page.size(), kMostSilence.tv_sec));
    if (got == 0)
      return fail(VMEM_ERROR_DRIVER, fmt::format("{} ended after {} of {} bytes of a page", name_, taken, page.size()));
    if (got < 0) return socket_failed("receiving a page");
    taken += static_cast<std::size_t>(got);
  }
  return {};
}

}  // namespace vmem::bench
