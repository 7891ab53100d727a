// Bandwidth of a Transport's payloads between two processes: over Unix sockets, TLS, or UCX's TCP.
// Compare the latter with UCX's own test under the same settings:
//   transport_bench 2097152 2000 thread unix|tls [CHANNELS]
//   transport_bench 2097152 2000 thread bare [CHANNELS]     bare TLS with as many connections
//   UCX_TLS=tcp UCX_NET_DEVICES=lo transport_bench 2097152 2000 loop ucx [CHANNELS]
//   UCX_TLS=tcp UCX_NET_DEVICES=lo ucx_perftest -t ucp_am_bw -e -s 2097152 -n 2000
//     (and the same with the server's address)
// -e: with endpoints that can fail alone, as a Transport needs them. Their rendezvous is a tenth
// slower than without. "loop" progresses in the thread that waits, as ucx_perftest does; "thread"
// in a ProgressThread, as programs do.
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "bench/micro/bare_tls.hpp"
#include "bench/micro/secret_file.hpp"
#include "rdma/transport/progress_thread.hpp"
#include "rdma/transport/stream/stream_transport.hpp"
#include "rdma/transport/ucx/ucx.hpp"

namespace {

using namespace vmem;
using namespace vmem::rdma;
using namespace vmem::bench;

constexpr std::size_t kWindow = 16;  // payloads in flight
constexpr std::uint64_t kDeadlineUs = 60'000'000;

// Puts all payloads at one place, on both sides, as ucx_perftest does.
class OnePlace final : public Receiver {
 public:
  std::optional<Claim> claim(PeerId, ConstBytes, std::uint64_t bytes) override {
    return Claim{memory.first(bytes), 1, clock->now_us() + kDeadlineUs};
  }
  Bytes memory;
  const Clock* clock = nullptr;
};

struct Over {
  std::string kind;  // "unix", "tls", "ucx", or "bare": TLS without a transport
  std::uint32_t channels = 1;
  std::string secret;  // a file, for TLS
  // Opened anew in each process: a forked one has no keys.
  KeyringRef keyring() const { return secret.empty() ? nullptr : Keyring::open(secret).value(); }
};

Result<std::unique_ptr<Transport>> make(const Over& over, std::uint64_t id, std::string listen, const Clock& clock,
                                        Receiver& receiver) {
  const NodeIdentity self{NodeId{id}, Incarnation{1}};
  if (over.kind == "ucx")
    return create_ucx_transport(
        {.self = self, .listen = std::move(listen), .clock = &clock, .receiver = &receiver, .channels = over.channels});
  return create_stream_transport({.self = self,
                                  .listen = std::move(listen),
                                  .keyring = over.keyring(),
                                  .clock = &clock,
                                  .receiver = &receiver,
                                  .channels = over.channels});
}

struct Node {
  Node(const Over& over, std::uint64_t id, std::string listen, std::size_t bytes, bool threaded)
      : owned(page_aligned(bytes), &std::free), memory(owned.get(), bytes) {
    receiver.memory = memory;
    receiver.clock = &clock;
    auto made = make(over, id, std::move(listen), clock, receiver);
    if (!made) {
      fmt::print(stderr, "{}\n", made.error().message);
      std::exit(1);
    }
    transport = *std::move(made);
    slab = *transport->register_slab(memory);
    if (threaded) thread = std::make_unique<ProgressThread>(*transport);
  }
  // The events since the last call.
  const std::vector<Event>& turn() {
    events.clear();
    if (thread == nullptr) {
      transport->progress();
    } else {
      transport->wait(1'000'000);
    }
    transport->poll(events);
    return events;
  }
  std::unique_ptr<std::byte, decltype(&std::free)> owned;
  Bytes memory;
  SteadyClock clock;
  OnePlace receiver;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Slab> slab;
  std::unique_ptr<ProgressThread> thread;
  std::vector<Event> events;
};

// Writes its address to the sender, counts messages, and answers the last one.
int receive(const Over& over, int to_sender, std::size_t bytes, std::size_t count, bool threaded) {
  Node node(over, 2, "127.0.0.1:0", bytes, threaded);
  const std::string address = node.transport->address() + "\n";
  if (::write(to_sender, address.data(), address.size()) < 0) return 1;
  for (std::size_t arrived = 0;;) {
    for (const Event& event : node.turn()) {
      if (std::holds_alternative<Gone>(event.what)) return arrived == count ? 0 : 1;
      if (!std::holds_alternative<Message>(event.what) || ++arrived != count) continue;
      Send done{.peer = event.peer, .deadline_us = node.clock.now_us() + kDeadlineUs};
      (void)node.transport->send({&done, 1});
    }
  }
}

class Sender {
 public:
  Sender(const Over& over, const std::string& address, std::size_t bytes, std::size_t count, bool threaded)
      : bytes_(bytes), count_(count), node_(over, 1, "", bytes, threaded) {
    peer_ = node_.transport->connect(address, node_.clock.now_us() + kDeadlineUs).value();
  }
  double gigabytes_per_second() {
    while (!connected_) turn();
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < kWindow && posted_ < count_; ++i) post();
    while (!answered_) turn();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    return static_cast<double>(count_ * bytes_) / took.count() / 1e9;
  }
  const std::string& path() const { return path_; }

 private:
  void post() {
    const ConstBytes payload[] = {ConstBytes(node_.memory)};
    ++posted_;
    Send send{.peer = peer_, .payload = payload, .deadline_us = node_.clock.now_us() + kDeadlineUs};
    (void)node_.transport->send({&send, 1});
  }
  void turn() {
    for (const Event& event : node_.turn()) std::visit([&](const auto& what) { on(what); }, event.what);
  }
  void on(const Connected& what) {
    connected_ = true;
    path_ = what.path;
  }
  void on(const Sent&) {
    if (posted_ < count_) post();
  }
  void on(const Message&) { answered_ = true; }
  void on(const Gone& what) {
    fmt::print(stderr, "{}\n", what.error.message);
    std::exit(1);
  }
  void on(const ReceiveFailed&) {}
  void on(const SendFailed&) {}

  const std::size_t bytes_, count_;
  Node node_;
  PeerId peer_{};
  std::size_t posted_ = 0;
  bool connected_ = false, answered_ = false;
  std::string path_;
};

// ---- TLS without a transport: the limit ----

int receive_bare(const Over& over, int to_sender, std::size_t bytes, std::size_t count) {
  BarePeer peer(over.keyring(), over.channels, bytes);
  const BareListener listener;
  const std::string address = listener.address + "\n";
  if (::write(to_sender, address.data(), address.size()) < 0) return 1;
  peer.accept(listener.socket.get());
  peer.in_threads([&](const BareStream& stream, Bytes memory) {
    for (std::size_t i = 0; i < count / over.channels; ++i) stream.read(memory);
    stream.write(memory.first(1));
  });
  return 0;
}

double send_bare(const Over& over, const std::string& address, std::size_t bytes, std::size_t count) {
  BarePeer peer(over.keyring(), over.channels, bytes);
  peer.connect(address);
  const auto start = std::chrono::steady_clock::now();
  peer.in_threads([&](const BareStream& stream, Bytes memory) {
    for (std::size_t i = 0; i < count / over.channels; ++i) stream.write(memory);
    stream.read(memory.first(1));
  });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const std::size_t sent_bytes = count / over.channels * over.channels * bytes;
  return static_cast<double>(sent_bytes) / took.count() / 1e9;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc >= 5 ? argv[3] : "";
  Over over{.kind = argc >= 5 ? argv[4] : "", .secret = {}};
  if (argc >= 6) over.channels = static_cast<std::uint32_t>(std::strtoul(argv[5], nullptr, 10));
  const bool known = over.kind == "unix" || over.kind == "tls" || over.kind == "ucx" || over.kind == "bare";
  if ((mode != "loop" && mode != "thread") || !known || over.channels == 0) {
    fmt::print(stderr, "transport_bench BYTES COUNT loop|thread unix|tls|ucx|bare [CHANNELS]\n");
    return 2;
  }
  const std::size_t bytes = std::strtoull(argv[1], nullptr, 10), count = std::strtoull(argv[2], nullptr, 10);
  char path[] = "/tmp/vmem_bench_XXXXXX";
  if (over.kind == "tls" || over.kind == "bare") {
    require(make_secret_file(path), path);
    over.secret = path;
  }
  int pipe[2];
  require(::pipe(pipe) == 0, "pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (over.kind == "bare") return receive_bare(over, pipe[1], bytes, count);
    return receive(over, pipe[1], bytes, count, mode == "thread");
  }
  std::string address;
  for (char c = 0; ::read(pipe[0], &c, 1) == 1 && c != '\n';) address += c;
  double rate = 0;
  std::string by = fmt::format("bare tls, {} connections", over.channels);
  if (over.kind == "bare") {
    rate = send_bare(over, address, bytes, count);
  } else {
    Sender sender(over, address, bytes, count, mode == "thread");
    rate = sender.gigabytes_per_second();
    by = sender.path();
  }
  fmt::print("{} bytes, {} times, over {}: {:.2f} GB/s\n", bytes, count, by, rate);
  if (!over.secret.empty()) ::unlink(path);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
