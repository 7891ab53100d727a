// The second node of two-process tests, controlled by its arguments:
//   rdma_peer listen ADDRESS SECRET CHANNELS TRANSPORT
//     prints its address on stdout and receives messages, whole payloads into one place
//   rdma_peer connect ADDRESS SECRET CHANNELS TRANSPORT
//     connects, and sends 8 MiB payloads over all channels until it ends
// Prints "connected" and "transferring" when it is, and ends when its stdin ends.
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "rdma/transport/test_transport.hpp"

namespace {

using namespace vmem;
using namespace vmem::rdma;

constexpr std::size_t kPayload = std::size_t{8} << 20;
constexpr std::uint64_t kFar = 3'600'000'000;

struct OnePlace final : Receiver {
  std::optional<Claim> claim(PeerId, ConstBytes, std::uint64_t bytes) override {
    say("transferring");
    return Claim{memory.first(bytes), 1, clock.now_us() + kFar};
  }
  static void say(const std::string& line) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }
  Bytes memory;
  SteadyClock clock;
};

template <class T>
T require(Result<T> result) {
  if (result) return *std::move(result);
  fmt::print(stderr, "rdma_peer: {}\n", result.error().message);
  std::exit(1);
}

bool parent_is_there() {
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return ::poll(&input, 1, 0) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const bool listens = std::string(argv[1]) == "listen";
  const auto channels = static_cast<std::uint32_t>(std::strtoul(argv[4], nullptr, 10));
  std::vector<std::byte> memory(4 * kPayload, std::byte{1});
  OnePlace receiver;
  receiver.memory = memory;
  const CryptoRef crypto = require(Crypto::load());
  const TestTransport of{.kind = argv[5],
                         .self = {NodeId{9}, Incarnation{1}},
                         .listen = listens ? argv[2] : "",
                         .keyring = std::string(argv[3]) == "-" ? nullptr : require(Keyring::open(argv[3])),
                         .channels = channels};
  const auto transport = require(make_test_transport(of, receiver.clock, receiver));
  const auto slab = require(transport->register_slab(memory));
  if (listens) {
    OnePlace::say(transport->address());
  } else {
    require(transport->connect(argv[2], receiver.clock.now_us() + kFar));
  }
  const ConstBytes payload[] = {ConstBytes(memory).first(kPayload)};
  std::vector<Event> events;
  while (parent_is_there()) {
    if (!transport->progress()) transport->idle(10'000);
    events.clear();
    transport->poll(events);
    for (const Event& event : events) {
      const bool connected = std::holds_alternative<Connected>(event.what);
      if (connected) OnePlace::say("connected");
      if (const Gone* gone = std::get_if<Gone>(&event.what))
        OnePlace::say(fmt::format("gone: {}", gone->error.message));
      if (listens || (!connected && !std::holds_alternative<Sent>(event.what))) continue;
      std::vector<Send> sends(
          connected ? channels : 1,
          Send{.peer = event.peer, .payload = payload, .deadline_us = receiver.clock.now_us() + kFar});
      (void)transport->send(sends);
    }
  }
  return 0;
}
