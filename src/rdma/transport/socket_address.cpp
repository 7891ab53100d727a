#include "rdma/transport/socket_address.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

namespace vmem::rdma {

Result<SocketAddress> SocketAddress::look_up(const std::string& text, int flags) {
  const auto refuse = [&](std::string_view why) {
    return fail(
        VMEM_ERROR_INVALID_OPTION,
        fmt::format("'{}' is no address: {}; accepted: host:port, such as 10.0.0.1:7000 or [::1]:7000", text, why));
  };
  const auto colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) return refuse("host and port are needed");
  std::string host = text.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    return refuse("an IPv6 address goes into brackets");
  }
  // getaddrinfo() would accept port 65537 as port 1.
  std::uint16_t port = 0;
  const auto [end, code] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
  if (code != std::errc{} || end != text.data() + text.size()) return refuse("the port is a number up to 65535");
  addrinfo hints{}, *raw = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  if (const int failed = ::getaddrinfo(host.c_str(), text.c_str() + colon + 1, &hints, &raw); failed != 0)
    return refuse(::gai_strerror(failed));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> found(raw, &::freeaddrinfo);
  SocketAddress address;
  std::memcpy(&address.storage_, found->ai_addr, found->ai_addrlen);
  address.size_ = found->ai_addrlen;
  return address;
}

Result<SocketAddress> SocketAddress::parse(const std::string& text) {
  const auto slash = text.find('/');
  if (slash == std::string::npos) return look_up(text, AI_NUMERICHOST);
  VMEM_ASSIGN(SocketAddress address, look_up(text.substr(slash + 1), AI_NUMERICHOST));
  address.name_ = text.substr(0, slash);
  return address;
}

Result<SocketAddress> SocketAddress::resolve(const std::string& text) {
  if (auto numeric = look_up(text, AI_NUMERICHOST)) return numeric;
  VMEM_ASSIGN(SocketAddress address, look_up(text, 0));
  address.name_ = text.substr(0, text.rfind(':'));
  return address;
}

Result<SocketAddress> SocketAddress::ask(int socket, int (*question)(int, sockaddr*, socklen_t*), const char* name) {
  SocketAddress address;
  address.size_ = sizeof(address.storage_);
  if (question(socket, reinterpret_cast<sockaddr*>(&address.storage_), &address.size_) != 0)
    return fail(VMEM_ERROR_INTERNAL, fmt::format("{}: {}", name, std::strerror(errno)), errno);
  return address;
}

Result<SocketAddress> SocketAddress::bound_to(int socket) { return ask(socket, ::getsockname, "getsockname"); }
Result<SocketAddress> SocketAddress::connected_to(int socket) { return ask(socket, ::getpeername, "getpeername"); }

bool SocketAddress::is_loopback() const noexcept {
  if (family() == AF_INET)
    return (ntohl(reinterpret_cast<const sockaddr_in&>(storage_).sin_addr.s_addr) >> 24) == IN_LOOPBACKNET;
  const in6_addr& address = reinterpret_cast<const sockaddr_in6&>(storage_).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&address)) return address.s6_addr[12] == IN_LOOPBACKNET;
  return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&address);
}

bool SocketAddress::is_unspecified() const noexcept {
  if (family() == AF_INET) return reinterpret_cast<const sockaddr_in&>(storage_).sin_addr.s_addr == htonl(INADDR_ANY);
  return family() == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(storage_).sin6_addr);
}

std::pair<std::string, std::string> SocketAddress::numeric() const {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (::getnameinfo(get(), size_, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return {};
  return {host.data(), port.data()};
}

std::string SocketAddress::text() const {
  const auto [host, port] = numeric();
  if (host.empty()) return "an unknown address";
  const std::string prefix = name_.empty() ? "" : name_ + "/";
  return family() == AF_INET6 ? fmt::format("{}[{}]:{}", prefix, host, port)
                              : fmt::format("{}{}:{}", prefix, host, port);
}

std::string SocketAddress::host() const { return name_.empty() ? numeric().first : name_; }

}  // namespace vmem::rdma
