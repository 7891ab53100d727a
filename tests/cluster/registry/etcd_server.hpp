// etcd servers on free ports of the loopback address. They end with their owner, and with this
// process.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/file_descriptor.hpp"

namespace vmem::cluster {

class TemporaryFolder {
 public:
  TemporaryFolder() { EXPECT_NE(::mkdtemp(path_), nullptr); }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string file(const std::string& name) const { return fmt::format("{}/{}", path_, name); }

 private:
  char path_[32] = "/tmp/vmem_etcd_XXXXXX";
};

// Invalid: the port is taken. Port 0: any; `port` says which.
inline FileDescriptor bound_socket(int& port) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) return {};
  EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  port = ntohs(address.sin_port);
  return socket;
}

// A connection is accepted now, or once the server accepts any.
inline bool is_listening(int port) {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

// Below those that the kernel gives out, and others for each process: nobody takes one before its
// server does.
inline std::vector<int> free_ports(std::size_t count) {
  constexpr int kFirst = 10'000, kPorts = 20'000, kEach = 40;
  static int next = 0;
  std::vector<int> ports;
  while (ports.size() < count) {
    int port = kFirst + (::getpid() * kEach + next++ % kEach) % kPorts;
    if (bound_socket(port)) ports.push_back(port);
  }
  return ports;
}

class EtcdServer {
 public:
  // The arguments are without the program's name. Its log goes to the file.
  EtcdServer(std::vector<std::string> arguments, std::string log)
      : arguments_(std::move(arguments)), log_(std::move(log)) {
    arguments_.insert(arguments_.begin(), "etcd");
    start();
  }
  ~EtcdServer() { kill(); }
  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  void start() {
    std::vector<char*> arguments;
    for (std::string& each : arguments_) arguments.push_back(each.data());
    arguments.push_back(nullptr);
    const pid_t parent = ::getpid();
    child_ = ::fork();
    if (child_ != 0) return;
    (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int log = ::open(log_.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(log, STDOUT_FILENO);
    ::dup2(log, STDERR_FILENO);
    if (::getppid() == parent) ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  void kill() {
    if (child_ > 0) ::kill(child_, SIGKILL);
    if (child_ > 0) ::waitpid(std::exchange(child_, -1), nullptr, 0);
  }
  // Returns once it is stopped.
  void stop() const {
    ::kill(child_, SIGSTOP);
    int status = 0;
    ::waitpid(child_, &status, WUNTRACED);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  void resume() const { ::kill(child_, SIGCONT); }
  bool has_ended() {
    if (child_ > 0 && ::waitpid(child_, nullptr, WNOHANG) == child_) child_ = -1;
    return child_ < 0;
  }

 private:
  std::vector<std::string> arguments_;
  std::string log_;
  pid_t child_ = -1;
};

struct EtcdOptions {
  std::vector<std::string> more;  // arguments of every server
  bool tls = false;
};

// One cluster of etcd, which listens, and may not have a leader yet.
class EtcdServers {
 public:
  explicit EtcdServers(std::size_t count, EtcdOptions options = {}) {
    const std::string scheme = options.tls ? "https" : "http";
    const std::vector<int> ports = free_ports(2 * count);
    std::string all;
    for (std::size_t i = 0; i < count; ++i)
      all += fmt::format("{}s{}=http://127.0.0.1:{}", i == 0 ? "" : ",", i, ports[count + i]);
    for (std::size_t i = 0; i < count; ++i) {
      endpoints_.push_back(fmt::format("127.0.0.1:{}", ports[i]));
      const std::string client = fmt::format("{}://{}", scheme, endpoints_[i]);
      const std::string peer = fmt::format("http://127.0.0.1:{}", ports[count + i]);
      // A server alone elects itself: the shorter, the sooner. Three need time on a loaded machine.
      std::vector<std::string> arguments = {"--name",
                                            fmt::format("s{}", i),
                                            "--data-dir",
                                            folder_.file(fmt::format("s{}", i)),
                                            "--listen-client-urls",
                                            client,
                                            "--advertise-client-urls",
                                            client,
                                            "--listen-peer-urls",
                                            peer,
                                            "--initial-advertise-peer-urls",
                                            peer,
                                            "--initial-cluster",
                                            all,
                                            "--heartbeat-interval",
                                            count == 1 ? "20" : "100",
                                            "--election-timeout",
                                            count == 1 ? "200" : "1000"};
      arguments.insert(arguments.end(), options.more.begin(), options.more.end());
      servers_.push_back(std::make_unique<EtcdServer>(std::move(arguments), folder_.file(fmt::format("log{}", i))));
    }
    for (std::size_t i = 0; i < count; ++i)
      while (usable() && !is_listening(ports[i])) ::usleep(1'000);
  }

  EtcdServer& operator[](std::size_t i) { return *servers_[i]; }
  const std::string& endpoint(std::size_t i) const { return endpoints_[i]; }
  std::string all_endpoints() const { return fmt::format("{}", fmt::join(endpoints_, ",")); }
  bool usable() {
    for (const auto& each : servers_) {
      if (each->has_ended()) return false;
    }
    return true;
  }

 private:
  TemporaryFolder folder_;
  std::vector<std::string> endpoints_;
  std::vector<std::unique_ptr<EtcdServer>> servers_;
};

}  // namespace vmem::cluster
