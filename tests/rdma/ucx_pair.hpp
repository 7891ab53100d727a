// Two UCX transports in one process, stepped by the test, on a clock that stands still.
#pragma once

#include <gmock/gmock.h>

#include "rdma/test_node.hpp"
#include "rdma/ucx.hpp"

namespace vmem::rdma {

class UcxPair {
 public:
  explicit UcxPair(std::string tls) : tls_(std::move(tls)) {
    a.start(make(identity_a(), a.receiver, ""));
    b.start(make(identity_b(), b.receiver, "127.0.0.1:0"));
  }
  static NodeIdentity identity_a() { return {NodeId{1}, Incarnation{11}}; }
  static NodeIdentity identity_b() { return {NodeId{2}, Incarnation{22}}; }
  std::uint64_t now_us() const { return clock.now_us(); }
  void pass(std::uint64_t us) { clock.advance(us); }
  static void step(TestNode& node) { node.step(); }

  ManualClock clock;
  TestNode a, b;

 private:
  std::unique_ptr<Transport> make(NodeIdentity self, ClaimingReceiver& receiver, std::string listen) const {
    UcxConfig config{.self = self,
                     .parameters = {0x7d0000000000, 1ull << 40, 2 << 20},
                     .listen = std::move(listen),
                     .clock = &clock,
                     .receiver = &receiver,
                     .settings = {{"TLS", tls_}, {"NET_DEVICES", "lo"}}};
    auto made = create_ucx_transport(std::move(config));
    if (!made) throw std::runtime_error(made.error().message);
    return *std::move(made);
  }
  std::string tls_;
};

struct TcpPair : UcxPair {
  TcpPair() : UcxPair("tcp") {}
  static std::string path() { return "tcp/lo"; }
};
struct SharedMemoryPair : UcxPair {
  SharedMemoryPair() : UcxPair("posix,sysv,cma") {}
  static std::string path() { return "/memory"; }
};

}  // namespace vmem::rdma
