// Two stream transports in one process, stepped by the test on a manual clock.
#pragma once

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

#include "rdma/transport/stream/stream_transport.hpp"
#include "rdma/transport/test_node.hpp"
#include "rdma/trust/secret_file.hpp"

namespace vmem::rdma {

class StreamPair {
 public:
  explicit StreamPair(const KeyringRef& keyring, std::uint32_t channels_a = 1, std::uint32_t channels_b = 1,
                      bool threads = false) {
    a.start(make(identity_a(), a.receiver, "", keyring, channels_a, threads));
    b.start(make(identity_b(), b.receiver, "127.0.0.1:0", keyring, channels_b, threads));
  }
  static NodeIdentity identity_a() { return {NodeId{1}, Incarnation{11}}; }
  static NodeIdentity identity_b() { return {NodeId{2}, Incarnation{22}}; }
  std::uint64_t now_us() const { return clock.now_us(); }
  void pass(std::uint64_t us) { clock.advance(us); }
  static void step(TestNode& node) { node.step(); }

  ManualClock clock;
  TestNode a, b;

 private:
  std::unique_ptr<Transport> make(NodeIdentity self, ClaimingReceiver& receiver, std::string listen, KeyringRef keyring,
                                  std::uint32_t channels, bool threads) const {
    StreamConfig config{.self = self,
                        .parameters = {0x7d0000000000, 1ull << 40, 2 << 20},
                        .listen = std::move(listen),
                        .keyring = std::move(keyring),
                        .clock = &clock,
                        .receiver = &receiver,
                        .channels = channels,
                        .channel_threads = threads};
    auto made = create_stream_transport(std::move(config));
    if (!made) throw std::runtime_error(made.error().message);
    return *std::move(made);
  }
};

struct UnixPair : StreamPair {
  UnixPair() : StreamPair(nullptr) {}
  static std::string path() { return "unix"; }
};
struct TlsPair : StreamPair {
  TlsPair() : StreamPair(SecretFile().read()) {}
  static std::string path() { return "tls"; }
};
// One side offers four channels, the other three: three are used.
struct UnixChannelsPair : StreamPair {
  UnixChannelsPair() : StreamPair(nullptr, 4, 3) {}
  static std::string path() { return "unix, 3 channels"; }
};
struct TlsChannelsPair : StreamPair {
  TlsChannelsPair() : StreamPair(SecretFile().read(), 4, 3) {}
  static std::string path() { return "tls, 3 channels"; }
};

}  // namespace vmem::rdma
