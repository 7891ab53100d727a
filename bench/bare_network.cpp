#include "bench/bare_network.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/file_descriptor.hpp"
#include "bench/all_at_once.hpp"
#include "bench/request_memory.hpp"
#include "bench/samples.hpp"
#include "bench/socket_pair.hpp"
#include "rdma/transport/socket_address.hpp"
#include "runtime/options/options.hpp"
#include "runtime/remote/nodes.hpp"

namespace vmem::bench {
namespace {

using rdma::SocketAddress;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kConnect{5};
constexpr std::chrono::seconds kRun{120};
constexpr std::chrono::milliseconds kBeforeAgain{10};
constexpr int kTries = 3;                    // of a client and a server that both run here
constexpr std::uint64_t kLeastMessages = 8;  // of each connection
constexpr std::uint64_t kTrialBytes = std::uint64_t{256} << 20;
constexpr int kWarmUp = 8;
// The default of ucx_perftest; the next connections to another machine use the next ports.
constexpr std::uint16_t kUsualPort = 13337;
constexpr double kMiB = 1 << 20;

// Different ports, only known to be free at the time of the call.
Result<std::vector<std::uint16_t>> free_ports(std::size_t count) {
  std::vector<Listener> listeners;
  std::vector<std::uint16_t> ports;
  while (ports.size() < count) {
    VMEM_ASSIGN(Listener listener, listen_here());
    ports.push_back(ntohs(listener.address.sin_port));
    listeners.push_back(std::move(listener));
  }
  return ports;
}

// An address belongs to this machine if a socket can be bound to it.
bool is_of_this_machine(const SocketAddress& address) {
  sockaddr_storage any{};
  std::memcpy(&any, address.get(), address.size());
  if (any.ss_family == AF_INET) reinterpret_cast<sockaddr_in&>(any).sin_port = 0;
  if (any.ss_family == AF_INET6) reinterpret_cast<sockaddr_in6&>(any).sin6_port = 0;
  const FileDescriptor socket(::socket(any.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return socket && ::bind(socket.get(), reinterpret_cast<sockaddr*>(&any), address.size()) == 0;
}

// Strips the port, and the brackets of IPv6.
std::string host_of(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  return host.starts_with('[') ? host.substr(1, host.size() - 2) : host;
}

// In large pages if the kernel has them, and touched. Makes only system calls: between fork and
// _exit nothing else is safe. nullptr if there is none.
std::byte* touched_memory(std::uint64_t bytes) {
  constexpr std::uint64_t kLargePage = std::uint64_t{2} << 20, kPage = 4096;
  void* const mapped = ::mmap(nullptr, bytes + kLargePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const memory = static_cast<std::byte*>(mapped) +
                       (kLargePage - reinterpret_cast<std::uintptr_t>(mapped) % kLargePage) % kLargePage;
  (void)::madvise(memory, bytes, MADV_HUGEPAGE);
  for (std::uint64_t at = 0; at < bytes; at += kPage) static_cast<volatile std::byte*>(memory)[at] = std::byte{1};
  return memory;
}

// The receiving end of a socket loop: answers with one byte once it has memory, reads `bytes` into
// it, from its beginning to its end and again, and answers once more. Makes only system calls.
[[noreturn]] void receive(int socket, std::uint64_t memory_bytes, std::uint64_t message_bytes, std::uint64_t bytes) {
  std::byte* const memory = touched_memory(memory_bytes);
  const char answer = 1;
  if (memory == nullptr || ::send(socket, &answer, 1, 0) != 1) ::_exit(1);
  for (std::uint64_t taken = 0; taken < bytes;) {
    const std::uint64_t left = message_bytes - taken % message_bytes;
    const ssize_t got = ::recv(socket, memory + taken % memory_bytes, left, 0);
    if (got <= 0) ::_exit(1);
    taken += static_cast<std::uint64_t>(got);
  }
  ::_exit(::send(socket, &answer, 1, 0) == 1 ? 0 : 1);
}

// A child process that receives.
class Receiver {
 public:
  static Result<Receiver> start(SocketKind kind, std::uint64_t memory_bytes, std::uint64_t message_bytes,
                                std::uint64_t bytes) {
    VMEM_ASSIGN(SocketPair pair, connect_pair(kind));
    Receiver made(std::move(pair.from));
    made.child_ = ::fork();
    if (made.child_ == 0) {
      ::close(made.socket_.get());  // else this process's end would keep the connection open
      receive(pair.to.get(), memory_bytes, message_bytes, bytes);
    }
    if (made.child_ < 0) return socket_failed("fork");
    pair.to.reset();
    VMEM_TRY(made.wait_for_answer());
    return made;
  }
  Receiver(Receiver&& other) noexcept : child_(std::exchange(other.child_, -1)), socket_(std::move(other.socket_)) {}
  Receiver& operator=(Receiver&&) = delete;
  ~Receiver() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  // Sends everything and waits for the answer.
  Status send(std::span<const std::byte> memory, std::uint64_t message_bytes, std::uint64_t bytes) const {
    for (std::uint64_t sent = 0; sent < bytes;) {
      const std::uint64_t left = message_bytes - sent % message_bytes;
      const ssize_t put = ::send(socket_.get(), memory.data() + sent % memory.size(), left, MSG_NOSIGNAL);
      if (put <= 0) return socket_failed("sending on this machine");
      sent += static_cast<std::uint64_t>(put);
    }
    return wait_for_answer();
  }

 private:
  explicit Receiver(FileDescriptor socket) : socket_(std::move(socket)) {}
  Status wait_for_answer() const {
    char answer = 0;
    const ssize_t got = ::recv(socket_.get(), &answer, 1, 0);
    if (got < 0) return socket_failed("receiving on this machine");
    if (got == 0)
      return fail(VMEM_ERROR_OUT_OF_MEMORY,
                  "the process that was to receive messages ended: no memory was left for it");
    return {};
  }
  pid_t child_ = -1;
  FileDescriptor socket_;
};

// Parses the last line of ucx_perftest's output, separated by commas: iterations, latencies,
// bandwidths (MiB/s; the sixth field is the mean of the whole run), rates.
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

std::vector<NodePath> node_paths(const Options& options) {
  const bool local = options.secret.empty() && options.certificates.empty();
  std::vector<NodePath> paths;
  for (const std::string& address : options.remote)
    paths.push_back(
        {address, runtime::channel_count(options.remote_channels), local ? SocketKind::local : SocketKind::tcp});
  return paths;
}

Result<std::unique_ptr<BareNetwork>> BareNetwork::create(NodePath path, std::uint64_t message_bytes) {
  VMEM_ASSIGN(const SocketAddress resolved, SocketAddress::resolve(path.address));
  std::unique_ptr<BareNetwork> network(new BareNetwork);
  network->path_ = std::move(path);
  network->host_ = host_of(resolved.text());
  network->here_ = is_of_this_machine(resolved);
  network->message_bytes_ = message_bytes;
  // Excludes shared memory, which two machines do not have either.
  network->environment_.emplace_back("UCX_TLS", "^sm");
  network->environment_.emplace_back("UCX_WARN_UNUSED_ENV_VARS", "n");
  if (!network->here_ && !has_perftest())
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("the rate of the network to {} cannot be measured without ucx_perftest, here and there: "
                            "apt-get install ucx-utils",
                            network->host_));
  VMEM_ASSIGN(network->by_, network->faster_of_both());
  return network;
}

// What is faster shows the limit, and what is slower shows none.
Result<BareNetwork::By> BareNetwork::faster_of_both() const {
  if (!here_) return By::perftest;
  if (!has_perftest()) return By::sockets;
  VMEM_ASSIGN(const double by_sockets, sockets(kTrialBytes, path_.connections, message_bytes_));
  VMEM_ASSIGN(const double by_perftest, perftest(kTrialBytes, path_.connections, Endpoints::ordinary));
  return by_sockets > by_perftest ? By::sockets : By::perftest;
}

bool BareNetwork::has_perftest() {
  static const bool there = std::system("command -v ucx_perftest >/dev/null 2>&1") == 0;
  return there;
}

std::string BareNetwork::name() const {
  const char* const sockets = path_.sockets == SocketKind::local ? "plain local sockets" : "plain TCP sockets";
  const std::string where = here_ ? "between two processes here" : "to " + host_;
  return fmt::format("{}, {}, {} connection{} {}", by_ == By::sockets ? sockets : "ucx_perftest ucp_am_bw",
                     format_bytes(message_bytes_), path_.connections, path_.connections == 1 ? "" : "s", where);
}

std::string BareNetwork::name_of_pages() const {
  return fmt::format("{} from memory to memory, {} connection{} between two processes here",
                     path_.sockets == SocketKind::local ? "plain local sockets" : "plain TCP sockets",
                     path_.connections, path_.connections == 1 ? "" : "s");
}

Result<double> BareNetwork::one_way(std::uint64_t bytes) const { return measure(bytes, path_.connections); }

Result<double> BareNetwork::one_way_of_pages(std::uint64_t bytes) const {
  return sockets(bytes, path_.connections, bytes / path_.connections);
}

// A network carries the same rate in both directions at once. On one machine the two directions
// share its cores, so they are measured together.
Result<double> BareNetwork::both_ways(std::uint64_t bytes) const {
  VMEM_ASSIGN(const double rate, measure(bytes, here_ ? 2 * path_.connections : path_.connections));
  return here_ ? rate : 2 * rate;
}

Result<double> BareNetwork::failing_alone(std::uint64_t bytes) const {
  return perftest(bytes, path_.connections, Endpoints::failing_alone);
}

Result<double> BareNetwork::measure(std::uint64_t bytes, std::uint32_t pairs) const {
  return by_ == By::perftest ? perftest(bytes, pairs, Endpoints::ordinary) : sockets(bytes, pairs, message_bytes_);
}

Result<double> BareNetwork::perftest(std::uint64_t bytes, std::uint32_t pairs, Endpoints endpoints) const {
  const std::uint64_t messages = std::max(bytes / pairs / message_bytes_, kLeastMessages);
  std::vector<std::uint16_t> ports(pairs);
  std::iota(ports.begin(), ports.end(), kUsualPort);
  if (here_) {
    VMEM_ASSIGN(ports, free_ports(pairs));
  }
  return sum_all_at_once(pairs, [&](std::size_t pair) { return rate_of_pair(ports[pair], messages, endpoints); });
}

// Starts clients until one reaches a server, because a server does not report when it listens. On
// this machine also starts the server, and starts it anew on another port if its port was taken, or
// if the two failed at once: a client of another process may have reached it.
Result<double> BareNetwork::rate_of_pair(std::uint16_t port, std::uint64_t messages, Endpoints endpoints) const {
  std::unique_ptr<ChildProcess> server;
  const auto until = steady_clock::now() + kConnect;
  for (int failures = 0, starts = 0;;) {
    if (here_ && (!server || server->ended())) {
      if (starts++ != 0) {
        VMEM_ASSIGN(const auto another, free_ports(1));
        port = another.front();
      }
      VMEM_ASSIGN(server, ChildProcess::start({"ucx_perftest", "-p", std::to_string(port)}, environment_));
    }
    const auto text = client_output(port, messages, endpoints);
    auto rate = text ? overall_of(*text) : std::unexpected(text.error());
    if (rate) return rate;
    const bool refused = rate.error().message.contains("Connection refused");
    if (!refused && (!here_ || ++failures == kTries)) return rate;
    if (!refused) server.reset();
    if (steady_clock::now() > until) {
      if (here_) return rate;
      return fail(VMEM_ERROR_INVALID_OPTION,
                  fmt::format("nobody listens at {}:{}, so the rate of the network over {} connections cannot be "
                              "measured; run there, beside the daemon: for port in $(seq {} {}); do while "
                              "UCX_TLS=^sm ucx_perftest -p $port; do :; done & done",
                              host_, port, path_.connections, kUsualPort, kUsualPort + path_.connections - 1));
    }
    std::this_thread::sleep_for(kBeforeAgain);
  }
}

Result<std::string> BareNetwork::client_output(std::uint16_t port, std::uint64_t messages, Endpoints endpoints) const {
  const auto text = [](auto number) { return std::to_string(number); };
  std::vector<std::string> arguments{
      "ucx_perftest",       host_, "-p",           text(port), "-t",          "ucp_am_bw", "-s",
      text(message_bytes_), "-n",  text(messages), "-w",       text(kWarmUp), "-v"};
  if (endpoints == Endpoints::failing_alone) arguments.emplace_back("-e");
  VMEM_ASSIGN(const auto client, ChildProcess::start(std::move(arguments), environment_));
  return client->output(kRun);
}

Result<double> BareNetwork::sockets(std::uint64_t bytes, std::uint32_t pairs, std::uint64_t memory_bytes) const {
  const std::uint64_t each = std::max(bytes / pairs / message_bytes_, kLeastMessages) * message_bytes_;
  const std::uint64_t whole = std::max<std::uint64_t>(memory_bytes / message_bytes_, 1) * message_bytes_;
  struct Pair {
    RequestMemory from;
    Receiver to;
  };
  std::vector<Pair> ready;
  for (std::uint32_t pair = 0; pair < pairs; ++pair) {
    VMEM_ASSIGN(RequestMemory from, in_large_pages(whole));
    VMEM_ASSIGN(Receiver to, Receiver::start(path_.sockets, whole, message_bytes_, each));
    ready.push_back({std::move(from), std::move(to)});
  }
  return sum_all_at_once(pairs, [&](std::size_t pair) -> Result<double> {
    const Stopwatch watch;
    VMEM_TRY(ready[pair].to.send({ready[pair].from.get(), whole}, message_bytes_, each));
    return static_cast<double>(each) / watch.nanoseconds();
  });
}

Status NetworkLimit::prepare(std::uint64_t page_bytes, std::uint64_t bytes) {
  networks_.clear();
  for (const NodePath& node : nodes_) {
    VMEM_ASSIGN(auto network, BareNetwork::create(node, page_bytes));
    networks_.push_back(std::move(network));
  }
  bytes_ = std::min(bytes / nodes_.size(), most_bytes_);
  return {};
}

Result<double> NetworkLimit::rate(StreamMode mode) {
  return sum_all_at_once(networks_.size(), [&](std::size_t i) {
    return mode == StreamMode::read_write ? networks_[i]->both_ways(bytes_) : networks_[i]->one_way(bytes_);
  });
}

std::string NetworkLimit::name(StreamMode mode) const {
  const std::string way = mode == StreamMode::read_write ? ", both ways" : "";
  if (networks_.size() == 1) return networks_.front()->name() + way;
  return fmt::format("{} nodes at once, each: {}{}", networks_.size(), networks_.front()->name(), way);
}

}  // namespace vmem::bench
