// Bare TLS 1.3 connections, each with a thread: the limit for a transport over TLS.
#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/file_descriptor.hpp"
#include "rdma/transport/socket_address.hpp"
#include "rdma/transport/transport.hpp"
#include "rdma/trust/tls.hpp"

namespace vmem::bench {

inline void require(bool what, const char* why) {
  if (what) return;
  std::perror(why);
  std::exit(1);
}

// Aligned as slabs are.
inline std::byte* page_aligned(std::size_t bytes) {
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  void* memory = std::aligned_alloc(kHuge, (bytes + kHuge - 1) / kHuge * kHuge);
  if (memory == nullptr) std::abort();
  return static_cast<std::byte*>(std::memset(memory, 1, bytes));
}

// One connection with blocking reads and writes.
struct BareStream {
  BareStream(const std::shared_ptr<rdma::TlsContext>& context, rdma::TlsRole role, FileDescriptor of)
      : socket(std::move(of)) {
    const int on = 1;
    (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
    session = rdma::TlsSession::create(context, role, socket.get(), "").value();
    while (!session->handshake().value()) wait(POLLIN);
  }
  void wait(short events) const {
    pollfd poll{.fd = socket.get(), .events = events, .revents = 0};
    (void)::poll(&poll, 1, -1);
  }
  void write(rdma::ConstBytes bytes) const {
    while (!bytes.empty()) {
      bytes = bytes.subspan(session->write(bytes).value());
      while (!session->flush().value()) wait(POLLOUT);
    }
  }
  void read(rdma::Bytes bytes) const {
    while (!bytes.empty()) {
      const std::size_t got = session->read(bytes).value();
      if (got == 0) wait(POLLIN);
      bytes = bytes.subspan(got);
    }
  }
  FileDescriptor socket;
  std::unique_ptr<rdma::TlsSession> session;
};

// `connections` streams, each with memory for a payload.
struct BarePeer {
  BarePeer(const rdma::KeyringRef& keyring, std::uint32_t connections, std::size_t bytes)
      : context(rdma::TlsContext::create(rdma::Crypto::load().value(), keyring).value()),
        owned(page_aligned(bytes * connections), &std::free) {
    for (std::uint32_t i = 0; i < connections; ++i) memory.emplace_back(owned.get() + i * bytes, bytes);
  }
  void accept(int listener) {
    while (streams.size() < memory.size())
      streams.emplace_back(context, rdma::TlsRole::server, FileDescriptor(::accept(listener, nullptr, nullptr)));
  }
  void connect(const std::string& address) {
    const rdma::SocketAddress to = *rdma::SocketAddress::parse(address);
    while (streams.size() < memory.size()) {
      FileDescriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
      require(::connect(socket.get(), to.get(), to.size()) == 0, "connect");
      streams.emplace_back(context, rdma::TlsRole::client, std::move(socket));
    }
  }
  // Runs `work` for each stream in a thread of its own.
  template <class Work>
  void in_threads(Work work) {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < streams.size(); ++i) threads.emplace_back([&, i] { work(streams[i], memory[i]); });
  }
  std::shared_ptr<rdma::TlsContext> context;
  std::unique_ptr<std::byte, decltype(&std::free)> owned;
  std::vector<rdma::Bytes> memory;
  std::vector<BareStream> streams;
};

struct BareListener {
  BareListener() : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const rdma::SocketAddress any = *rdma::SocketAddress::parse("127.0.0.1:0");
    require(::bind(socket.get(), any.get(), any.size()) == 0 && ::listen(socket.get(), 8) == 0, "listen");
    address = rdma::SocketAddress::bound_to(socket.get())->text();
  }
  FileDescriptor socket;
  std::string address;
};

}  // namespace vmem::bench
