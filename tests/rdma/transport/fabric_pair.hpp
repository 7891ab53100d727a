// Two nodes of a fabric with a latency of 10 us.
#pragma once

#include "rdma/transport/faulty.hpp"
#include "rdma/transport/in_process/in_process.hpp"
#include "rdma/transport/test_node.hpp"

namespace vmem::rdma {

class FabricPair {
 public:
  static constexpr std::uint64_t kLatencyUs = 10;

  FabricPair() {
    fabric.set_latency(kLatencyUs);
    a.start(fabric.node(identity_a(), a.receiver));
    b.start(fabric.node(identity_b(), b.receiver));
  }
  static NodeIdentity identity_a() { return {NodeId{1}, Incarnation{11}}; }
  static NodeIdentity identity_b() { return {NodeId{2}, Incarnation{22}}; }
  static std::string path() { return "in-process"; }
  std::uint64_t now_us() const { return clock.now_us(); }
  void pass(std::uint64_t us) { clock.advance(us); }
  void step(TestNode& node) {
    clock.advance(kLatencyUs);
    node.step();
  }

  ManualClock clock;
  Fabric fabric{clock};
  TestNode a, b;
};

}  // namespace vmem::rdma
