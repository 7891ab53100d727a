// Two UCX transports in one process, stepped by the test on a manual clock.
#pragma once

#include <gmock/gmock.h>

#include "rdma/transport/test_node.hpp"
#include "rdma/transport/ucx/ucx.hpp"

namespace vmem::rdma {

class UcxPair {
 public:
  // Several channels are progressed by the test, or by a thread each. `gpu`: of the first; `gpu_b`:
  // of the second.
  explicit UcxPair(std::string tls, std::uint32_t channels_a = 1, std::uint32_t channels_b = 1, bool threads = false,
                   std::optional<UcxGpuMemory> gpu = std::nullopt, std::optional<UcxGpuMemory> gpu_b = std::nullopt)
      : tls_(std::move(tls)), threads_(threads) {
    a.start(make(identity_a(), a.receiver, "", channels_a, std::move(gpu)));
    b.start(make(identity_b(), b.receiver, "127.0.0.1:0", channels_b, std::move(gpu_b)));
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
                                  std::uint32_t channels, std::optional<UcxGpuMemory> gpu) const {
    UcxConfig config{.self = self,
                     .parameters = {0x7d0000000000, 1ull << 40, 2 << 20},
                     .listen = std::move(listen),
                     .clock = &clock,
                     .receiver = &receiver,
                     .channels = channels,
                     .channel_threads = threads_,
                     .settings = {{"TLS", tls_}, {"NET_DEVICES", "lo"}},
                     .gpu = std::move(gpu)};
    auto made = create_ucx_transport(std::move(config));
    if (!made) throw std::runtime_error(made.error().message);
    return *std::move(made);
  }
  std::string tls_;
  bool threads_;
};

struct TcpPair : UcxPair {
  TcpPair() : UcxPair("tcp") {}
  static std::string path() { return "tcp/lo"; }
};
// One side offers four channels, the other three: three are used.
struct ChannelsPair : UcxPair {
  ChannelsPair() : UcxPair("tcp", 4, 3) {}
  static std::string path() { return "tcp/lo, 3 channels"; }
};
struct SharedMemoryPair : UcxPair {
  SharedMemoryPair() : UcxPair("posix,sysv,cma") {}
  static std::string path() { return "/memory"; }
};

}  // namespace vmem::rdma
