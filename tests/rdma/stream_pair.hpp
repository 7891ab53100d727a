// Two stream transports in one process, stepped by the test, on a clock that stands still.
#pragma once

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

#include "rdma/stream/stream_transport.hpp"
#include "rdma/test_node.hpp"

namespace vmem::rdma {

// A secret of its own, in a file that is gone when this is.
class SecretFile {
 public:
  explicit SecretFile(std::string_view text = "0123456789abcdef0123456789abcdef") {
    const FileDescriptor file(::mkstemp(path_));
    if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      throw std::runtime_error("the secret was not written");
  }
  ~SecretFile() { ::unlink(path_); }
  std::string path() const { return path_; }
  Secret read() const { return *Secret::read(**Crypto::load(), path_); }

 private:
  char path_[32] = "/tmp/vmem_secret_XXXXXX";
};

class StreamPair {
 public:
  explicit StreamPair(Secret secret, std::uint32_t channels_a = 1, std::uint32_t channels_b = 1, bool threads = false) {
    a.start(make(identity_a(), a.receiver, "", secret, channels_a, threads));
    b.start(make(identity_b(), b.receiver, "127.0.0.1:0", secret, channels_b, threads));
  }
  static NodeIdentity identity_a() { return {NodeId{1}, Incarnation{11}}; }
  static NodeIdentity identity_b() { return {NodeId{2}, Incarnation{22}}; }
  std::uint64_t now_us() const { return clock.now_us(); }
  void pass(std::uint64_t us) { clock.advance(us); }
  static void step(TestNode& node) { node.step(); }

  ManualClock clock;
  TestNode a, b;

 private:
  std::unique_ptr<Transport> make(NodeIdentity self, ClaimingReceiver& receiver, std::string listen,
                                  const Secret& secret, std::uint32_t channels, bool threads) const {
    StreamConfig config{.self = self,
                        .parameters = {0x7d0000000000, 1ull << 40, 2 << 20},
                        .listen = std::move(listen),
                        .secret = secret,
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
  UnixPair() : StreamPair(Secret::none()) {}
  static std::string path() { return "unix"; }
};
struct TlsPair : StreamPair {
  TlsPair() : StreamPair(SecretFile().read()) {}
  static std::string path() { return "tls"; }
};
// Of the four, three are used.
struct UnixChannelsPair : StreamPair {
  UnixChannelsPair() : StreamPair(Secret::none(), 4, 3) {}
  static std::string path() { return "unix, 3 channels"; }
};
struct TlsChannelsPair : StreamPair {
  TlsChannelsPair() : StreamPair(SecretFile().read(), 4, 3) {}
  static std::string path() { return "tls, 3 channels"; }
};

}  // namespace vmem::rdma
