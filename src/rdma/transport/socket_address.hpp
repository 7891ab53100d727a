// Addresses that nodes listen on and connect to: "10.0.0.1:7000", "[fe80::1]:7000", and, with a
// resolved host name, "gpu07/10.0.0.1:7000".
#pragma once

#include <sys/socket.h>

#include <string>
#include <utility>

#include "base/status.hpp"

namespace vmem::rdma {

class SocketAddress {
 public:
  // Numeric addresses only, without a name lookup. Errors: INVALID_OPTION.
  static Result<SocketAddress> parse(const std::string& text);
  // Also host names: waits for the name service, so only for start-up. Errors: INVALID_OPTION.
  static Result<SocketAddress> resolve(const std::string& text);
  static Result<SocketAddress> bound_to(int socket);
  static Result<SocketAddress> connected_to(int socket);

  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const noexcept { return size_; }
  int family() const noexcept { return storage_.ss_family; }
  bool is_loopback() const noexcept;
  bool is_unspecified() const noexcept;  // any address of this machine: 0.0.0.0, [::]
  std::string text() const;
  // The resolved name, or else the numeric address without brackets.
  std::string host() const;

 private:
  static Result<SocketAddress> look_up(const std::string& text, int flags);
  std::pair<std::string, std::string> numeric() const;  // host, port
  static Result<SocketAddress> ask(int socket, int (*question)(int, sockaddr*, socklen_t*), const char* name);
  sockaddr_storage storage_{};
  socklen_t size_ = 0;
  std::string name_;  // the resolved name, if any
};

}  // namespace vmem::rdma
