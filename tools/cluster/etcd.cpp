#include "tools/cluster/etcd.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "tools/cluster/state.hpp"

namespace vmem::tools::local_cluster {
namespace {

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Bound until its owner drops it, so that the next one gets another port.
Result<FileDescriptor> bound_socket(std::uint16_t& port) {
  FileDescriptor opened(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (!opened || ::bind(opened.get(), any, size) != 0 || ::getsockname(opened.get(), any, &size) != 0) {
    const int error = errno;
    return fail(VMEM_ERROR_DRIVER, fmt::format("no free port of 127.0.0.1: {}", std::strerror(error)), error);
  }
  port = ntohs(address.sin_port);
  return opened;
}

bool can_be_run(const std::string& path) {
  struct stat found{};
  return ::stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

// On this architecture etcd runs only if told so.
bool is_for_etcd_alone(std::string_view variable) {
  return variable.starts_with("ETCD_") && !variable.starts_with("ETCD_UNSUPPORTED_ARCH=");
}

}  // namespace

Result<EtcdPorts> free_ports() {
  EtcdPorts ports;
  VMEM_ASSIGN(const FileDescriptor client, bound_socket(ports.client));
  VMEM_ASSIGN(const FileDescriptor peer, bound_socket(ports.peer));
  return ports;
}

bool listens(std::uint16_t port) {
  const FileDescriptor opened(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  return opened && ::connect(opened.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

std::string find_on_path(const std::string& name) {
  const char* const path = std::getenv("PATH");
  for (std::string_view rest = path == nullptr ? "" : path; !rest.empty();) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    const std::string candidate = fmt::format("{}/{}", rest.substr(0, end), name);
    if (end > 0 && can_be_run(candidate)) return candidate;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return "";
}

Result<std::string> find_etcd() {
  std::string found = find_on_path("etcd");
  if (!found.empty()) return found;
  return fail(VMEM_ERROR_UNSUPPORTED,
              "a cluster needs etcd 3.4 or later, and there is no program `etcd` on the PATH; install it (Debian, "
              "Ubuntu: apt install etcd-server), or add its folder to the PATH");
}

LaunchCommand etcd_command(const std::string& program, const Folder& folder, EtcdPorts ports) {
  const std::string client = fmt::format("http://127.0.0.1:{}", ports.client);
  const std::string peer = fmt::format("http://127.0.0.1:{}", ports.peer);
  return {.words = {program, "--name", kEtcdName, "--data-dir", folder.file(kEtcdName), "--listen-client-urls", client,
                    "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls",
                    peer, "--initial-cluster", fmt::format("{}={}", kEtcdName, peer),
                    // A server alone elects itself: the shorter, the sooner.
                    "--heartbeat-interval", "20", "--election-timeout", "200"},
          .environment = environment_of_etcd()};
}

bool says_port_in_use(const std::vector<std::string>& log_lines) {
  return std::ranges::any_of(log_lines,
                             [](const std::string& line) { return line.contains("address already in use"); });
}

std::vector<std::string> environment() {
  std::vector<std::string> all;
  for (char** each = environ; *each != nullptr; ++each) all.emplace_back(*each);
  return all;
}

std::vector<std::string> environment_of_etcd() {
  std::vector<std::string> all = environment();
  std::erase_if(all, is_for_etcd_alone);
  return all;
}

}  // namespace vmem::tools::local_cluster
