// A server that is not etcd: it answers what the test says.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "cluster/registry/etcd_server.hpp"

namespace vmem::cluster {

class Stranger {
 public:
  // For each connection: what to do with it after `request`, the first bytes that came.
  struct Visit {
    int socket;
    std::string request;
    int end;  // readable when the stranger is to end
  };
  using Behaviour = std::function<void(const Visit&)>;

  explicit Stranger(Behaviour behaviour) : behaviour_(std::move(behaviour)), listening_(bound_socket(port_)) {
    EXPECT_EQ(::listen(listening_.get(), 16), 0);
    thread_ = std::thread([this] { run(); });
  }
  ~Stranger() {
    (void)::eventfd_write(end_.get(), 1);
    thread_.join();
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  std::string endpoint() const { return fmt::format("127.0.0.1:{}", port_); }
  int visits() const { return visits_.load(); }

  static void say(const Visit& visit, std::string_view text) {
    (void)::send(visit.socket, text.data(), text.size(), MSG_NOSIGNAL);
  }
  static std::string http(std::string_view body, std::string_view status = "200 OK") {
    return fmt::format("HTTP/1.1 {}\r\nContent-Length: {}\r\n\r\n{}", status, body.size(), body);
  }
  // Returns whether the socket is readable; false: the stranger is to end.
  static bool wait(int socket, int end) {
    pollfd watched[2] = {{socket, POLLIN, 0}, {end, POLLIN, 0}};
    (void)::poll(watched, 2, -1);
    return watched[1].revents == 0;
  }

 private:
  void run() {
    while (wait(listening_.get(), end_.get())) {
      const FileDescriptor socket(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      char bytes[4096];
      if (!wait(socket.get(), end_.get())) return;
      const ssize_t got = ::recv(socket.get(), bytes, sizeof(bytes), 0);
      if (got <= 0) continue;
      ++visits_;
      behaviour_({socket.get(), std::string(bytes, static_cast<std::size_t>(got)), end_.get()});
    }
  }

  const Behaviour behaviour_;
  int port_ = 0;
  const FileDescriptor listening_;
  const FileDescriptor end_{::eventfd(0, EFD_CLOEXEC)};
  std::atomic<int> visits_{0};
  std::thread thread_;
};

}  // namespace vmem::cluster
