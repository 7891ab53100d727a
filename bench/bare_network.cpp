#include "bench/bare_network.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <future>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/file_descriptor.hpp"
#include "base/options.hpp"
#include "bench/samples.hpp"
#include "rdma/socket_address.hpp"
#include "runtime/nodes.hpp"

namespace vmem::bench {
namespace {

using rdma::SocketAddress;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kConnect{5};
constexpr std::chrono::seconds kRun{120};
constexpr std::chrono::milliseconds kBeforeAgain{10};
constexpr std::uint64_t kLeastMessages = 8;
constexpr int kWarmUp = 8;
constexpr std::uint16_t kUsualPort = 13337;  // ucx_perftest's
constexpr double kMiB = 1 << 20;

std::unexpected<Error> failed(const char* what) {
  return fail(VMEM_ERROR_DRIVER, fmt::format("{}: {}", what, std::strerror(errno)), errno);
}

// A socket that listens on a free port of the loopback device.
struct Listener {
  FileDescriptor socket;
  sockaddr_in address{};
};
Result<Listener> listen_here() {
  Listener listener{FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  listener.address.sin_family = AF_INET;
  listener.address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const address = reinterpret_cast<sockaddr*>(&listener.address);
  socklen_t size = sizeof(listener.address);
  if (!listener.socket || ::bind(listener.socket.get(), address, size) != 0 ||
      ::listen(listener.socket.get(), 1) != 0 || ::getsockname(listener.socket.get(), address, &size) != 0)
    return failed("a socket on the loopback device");
  return listener;
}

// One that was free a moment ago.
Result<std::uint16_t> free_port() {
  VMEM_ASSIGN(const Listener listener, listen_here());
  return ntohs(listener.address.sin_port);
}

// An address of this machine is one that a socket can be bound to.
bool is_of_this_machine(const SocketAddress& address) {
  sockaddr_storage any{};
  std::memcpy(&any, address.get(), address.size());
  if (any.ss_family == AF_INET) reinterpret_cast<sockaddr_in&>(any).sin_port = 0;
  if (any.ss_family == AF_INET6) reinterpret_cast<sockaddr_in6&>(any).sin6_port = 0;
  const FileDescriptor socket(::socket(any.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return socket && ::bind(socket.get(), reinterpret_cast<sockaddr*>(&any), address.size()) == 0;
}

// Without the port, and the brackets of IPv6.
std::string host_of(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  return host.starts_with('[') ? host.substr(1, host.size() - 2) : host;
}

// The receiving end of a socket loop: reads everything, answers with one byte. Makes only system
// calls, because it runs between fork and _exit.
[[noreturn]] void receive(int listener, std::byte* memory, std::uint64_t message_bytes, std::uint64_t bytes) {
  const int socket = ::accept(listener, nullptr, nullptr);
  if (socket < 0) ::_exit(1);
  for (std::uint64_t taken = 0; taken < bytes;) {
    const std::uint64_t at = taken % message_bytes;
    const ssize_t got = ::recv(socket, memory + at, message_bytes - at, 0);
    if (got <= 0) ::_exit(1);
    taken += static_cast<std::uint64_t>(got);
  }
  const char done = 1;
  ::_exit(::send(socket, &done, 1, 0) == 1 ? 0 : 1);
}

class Receiver {
 public:
  static Result<Receiver> start(std::uint64_t message_bytes, std::uint64_t bytes) {
    VMEM_ASSIGN(Listener listener, listen_here());
    Receiver made(listener.address);
    std::vector<std::byte> memory(message_bytes, std::byte{1});
    made.child_ = ::fork();
    if (made.child_ == 0) receive(listener.socket.get(), memory.data(), message_bytes, bytes);
    if (made.child_ < 0) return failed("fork");
    return made;
  }
  Receiver(Receiver&& other) noexcept : child_(std::exchange(other.child_, -1)), address_(other.address_) {}
  Receiver& operator=(Receiver&&) = delete;
  ~Receiver() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  // Sends everything and waits for the answer.
  Status send(std::span<const std::byte> message, std::uint64_t bytes) const {
    const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket || ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof(address_)) != 0)
      return failed("connecting a socket on the loopback device");
    for (std::uint64_t sent = 0; sent < bytes;) {
      const std::uint64_t at = sent % message.size();
      const ssize_t put = ::send(socket.get(), message.data() + at, message.size() - at, MSG_NOSIGNAL);
      if (put <= 0) return failed("sending on the loopback device");
      sent += static_cast<std::uint64_t>(put);
    }
    char done = 0;
    if (::recv(socket.get(), &done, 1, 0) != 1) return failed("receiving on the loopback device");
    return {};
  }

 private:
  explicit Receiver(const sockaddr_in& address) : address_(address) {}
  pid_t child_ = -1;
  sockaddr_in address_;
};

// The last line of ucx_perftest's output, separated by commas: iterations, latencies, bandwidths
// (MiB/s; the sixth field is the mean of the whole run), rates.
Result<double> overall_of(const std::string& text) {
  const std::string trimmed = text.substr(0, text.find_last_not_of("\n ") + 1);
  std::string line = trimmed.substr(trimmed.rfind('\n') + 1);
  std::size_t at = 0;
  for (int comma = 0; comma < 5 && at != std::string::npos; ++comma) at = line.find(',', at + (comma == 0 ? 0 : 1));
  const double rate = at == std::string::npos ? 0 : std::strtod(line.c_str() + at + 1, nullptr);
  if (rate <= 0) return fail(VMEM_ERROR_DRIVER, fmt::format("ucx_perftest printed no figures: {}", text));
  return rate * kMiB / 1e9;
}

}  // namespace

Result<std::unique_ptr<BareNetwork>> BareNetwork::create(const std::string& address, std::uint64_t message_bytes) {
  VMEM_ASSIGN(const SocketAddress resolved, SocketAddress::resolve(address));
  std::unique_ptr<BareNetwork> network(new BareNetwork);
  network->host_ = host_of(resolved.text());
  network->here_ = is_of_this_machine(resolved);
  network->message_bytes_ = message_bytes;
  // Not through shared memory: as between machines.
  network->environment_.emplace_back("UCX_TLS", "^sm");
  network->environment_.emplace_back("UCX_WARN_UNUSED_ENV_VARS", "n");
  if (network->here_ || has_perftest()) return network;
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("the rate of the network to {} cannot be measured without ucx_perftest, here and there: "
                          "apt-get install ucx-utils",
                          network->host_));
}

bool BareNetwork::has_perftest() {
  static const bool there = std::system("command -v ucx_perftest >/dev/null 2>&1") == 0;
  return there;
}

std::string BareNetwork::name() const {
  const std::string size = format_bytes(message_bytes_);
  if (!has_perftest()) return fmt::format("a TCP socket, {} at a time (ucx_perftest is not installed)", size);
  return fmt::format("ucx_perftest ucp_am_bw, {}{}", size, here_ ? " between two processes here" : " to " + host_);
}

// A network carries as much each way at once; this machine has its cores only once.
Result<double> BareNetwork::both_ways(std::uint64_t bytes) const {
  VMEM_ASSIGN(const double rate, measure(bytes / 2, here_ ? 2 : 1, false));
  return here_ ? rate : 2 * rate;
}

Result<double> BareNetwork::measure(std::uint64_t bytes, int pairs, bool alone) const {
  return has_perftest() ? perftest(bytes, pairs, alone) : sockets(bytes, pairs);
}

// Pairs of processes at once; their rates in sum.
Result<double> BareNetwork::perftest(std::uint64_t bytes, int pairs, bool alone) const {
  const std::uint64_t messages = std::max(bytes / message_bytes_, kLeastMessages);
  std::vector<std::future<Result<double>>> rates;
  for (int pair = 0; pair < pairs; ++pair)
    rates.push_back(std::async(std::launch::async, [=, this] { return rate_of_pair(messages, alone); }));
  double sum = 0;
  Status status;
  for (auto& each : rates) {
    const Result<double> rate = each.get();
    if (rate) sum += *rate;
    if (!rate && status) status = std::unexpected(rate.error());
  }
  VMEM_TRY(std::move(status));
  return sum;
}

// Starts clients until one reaches a server, which does not report when it listens. On this machine
// also starts the server, and another one at another port if it ended because its port was taken.
Result<double> BareNetwork::rate_of_pair(std::uint64_t messages, bool alone) const {
  std::unique_ptr<ChildProcess> server;
  std::uint16_t port = kUsualPort;
  for (const auto until = steady_clock::now() + kConnect;;) {
    if (here_ && (!server || server->ended())) {
      VMEM_ASSIGN(port, free_port());
      VMEM_ASSIGN(server, ChildProcess::start({"ucx_perftest", "-p", std::to_string(port)}, environment_));
    }
    const auto text = client_output(port, messages, alone);
    if (text) return overall_of(*text);
    if (text.error().message.find("Connection refused") == std::string::npos) return std::unexpected(text.error());
    if (steady_clock::now() > until) {
      if (here_) return std::unexpected(text.error());
      return fail(
          VMEM_ERROR_INVALID_OPTION,
          fmt::format("nobody listens at {}:{}, so the rate of the network cannot be measured; run there, beside "
                      "the daemon: while UCX_TLS=^sm ucx_perftest; do :; done",
                      host_, port));
    }
    std::this_thread::sleep_for(kBeforeAgain);
  }
}

Result<std::string> BareNetwork::client_output(std::uint16_t port, std::uint64_t messages, bool alone) const {
  const auto text = [](auto number) { return std::to_string(number); };
  std::vector<std::string> arguments{
      "ucx_perftest",       host_, "-p",           text(port), "-t",          "ucp_am_bw", "-s",
      text(message_bytes_), "-n",  text(messages), "-w",       text(kWarmUp), "-v"};
  if (alone) arguments.emplace_back("-e");
  VMEM_ASSIGN(const auto client, ChildProcess::start(std::move(arguments), environment_));
  return client->output(kRun);
}

Result<double> BareNetwork::sockets(std::uint64_t bytes, int pairs) const {
  const std::uint64_t all = std::max(bytes / message_bytes_, kLeastMessages) * message_bytes_;
  const std::vector<std::byte> message(message_bytes_, std::byte{1});
  std::vector<Receiver> receivers;
  for (int pair = 0; pair < pairs; ++pair) {
    VMEM_ASSIGN(Receiver receiver, Receiver::start(message_bytes_, all));
    receivers.push_back(std::move(receiver));
  }
  const Stopwatch watch;
  std::vector<std::future<Status>> senders;
  for (const Receiver& receiver : receivers)
    senders.push_back(std::async(std::launch::async, [&] { return receiver.send(message, all); }));
  Status status;
  for (auto& sender : senders) {
    if (Status sent = sender.get(); !sent && status) status = std::move(sent);
  }
  VMEM_TRY(std::move(status));
  return static_cast<double>(all) * pairs / watch.nanoseconds();
}

}  // namespace vmem::bench
