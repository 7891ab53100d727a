// A proxy between a node and the address it connects to. Forwards everything and records the TLS
// records.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"
#include "rdma/transport/socket_address.hpp"

namespace vmem::rdma {

struct TlsRecord {
  unsigned type = 0;
  std::size_t bytes = 0;  // without the header
};

class Tap {
 public:
  explicit Tap(const std::string& to) : to_(*SocketAddress::parse(to)) {
    listener_ = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const auto any = *SocketAddress::parse("127.0.0.1:0");
    EXPECT_EQ(::bind(listener_.get(), any.get(), any.size()), 0);
    EXPECT_EQ(::listen(listener_.get(), 8), 0);
  }
  std::string address() const { return SocketAddress::bound_to(listener_.get())->text(); }

  void step() {
    if (FileDescriptor near(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)); near) {
      FileDescriptor far(::socket(to_.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      (void)::connect(far.get(), to_.get(), to_.size());
      const int near_socket = near.get(), far_socket = far.get();
      sockets_.push_back(std::move(near));
      sockets_.push_back(std::move(far));
      ways_.push_back({near_socket, far_socket, &forth_, {}, {}});
      ways_.push_back({far_socket, near_socket, &back_, {}, {}});
    }
    for (Way& way : ways_) pass(way);
  }
  // Records of all connections: to the node that was connected to, and from it.
  const std::vector<TlsRecord>& forth() const noexcept { return forth_; }
  const std::vector<TlsRecord>& back() const noexcept { return back_; }

 private:
  struct Way {
    int from, to;
    std::vector<TlsRecord>* records;
    std::vector<unsigned char> parsed, unsent;
  };
  static void pass(Way& way) {
    std::array<unsigned char, 65536> bytes;
    if (way.unsent.empty()) {
      const ssize_t got = ::recv(way.from, bytes.data(), bytes.size(), 0);
      if (got <= 0) return;
      way.unsent.assign(bytes.begin(), bytes.begin() + got);
      note(way);
    }
    const ssize_t sent = ::send(way.to, way.unsent.data(), way.unsent.size(), MSG_NOSIGNAL);
    if (sent > 0) way.unsent.erase(way.unsent.begin(), way.unsent.begin() + sent);
  }
  static void note(Way& way) {
    way.parsed.insert(way.parsed.end(), way.unsent.begin(), way.unsent.end());
    std::size_t at = 0;
    while (way.parsed.size() - at >= 5) {
      const std::size_t size = std::size_t{way.parsed[at + 3]} << 8 | way.parsed[at + 4];
      if (way.parsed.size() - at < 5 + size) break;
      way.records->push_back({way.parsed[at], size});
      at += 5 + size;
    }
    way.parsed.erase(way.parsed.begin(), way.parsed.begin() + static_cast<std::ptrdiff_t>(at));
  }

  const SocketAddress to_;
  FileDescriptor listener_;
  std::list<FileDescriptor> sockets_;
  std::list<Way> ways_;
  std::vector<TlsRecord> forth_, back_;
};

}  // namespace vmem::rdma
