// Stream transports with a real clock, stepped by the test.
#pragma once

#include <gmock/gmock.h>

#include <chrono>
#include <string>
#include <utility>

#include "rdma/transport/stream/stream_transport.hpp"
#include "rdma/transport/test_node.hpp"
#include "rdma/trust/secret_file.hpp"

namespace vmem::rdma {

inline constexpr ClusterParameters kParameters{0x7d0000000000, 1ull << 40, 2 << 20};

struct Node : SteadyNode {
  StreamConfig config(std::uint64_t id, std::string listen, KeyringRef keyring) {
    receiver.deadline_us = clock.now_us() + 3600 * kSecondUs;
    return {.self = {NodeId{id}, Incarnation{1}},
            .parameters = kParameters,
            .listen = std::move(listen),
            .keyring = std::move(keyring),
            .clock = &clock,
            .receiver = &receiver};
  }
  void start_as(StreamConfig with) {
    auto made = create_stream_transport(std::move(with));
    ASSERT_TRUE(made) << made.error().message;
    start(*std::move(made));
  }
};

template <class Done>
[[nodiscard]] bool until(std::initializer_list<TestNode*> nodes, Done done, int most_s = 20) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(most_s);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    for (TestNode* node : nodes) node->step();
  }
  return true;
}

// Checks that honest nodes connect and a payload arrives, despite other connections.
inline void expect_service(Node& a, Node& b) {
  a.events.clear();
  b.events.clear();
  const auto peer = a.transport->connect(b.transport->address(), a.later());
  ASSERT_TRUE(peer) << peer.error().message;
  ASSERT_TRUE(until({&a, &b}, [&] { return a.connected() && b.connected(); }));
  a.send(*peer, "page", {a.outgoing(1 << 20, 3)}, a.later());
  ASSERT_TRUE(until({&a, &b}, [&] { return b.count<Message>() == 1; }));
  EXPECT_TRUE(TestNode::has_pattern(b.all<Message>()[0].second.payload, 3));
  a.transport->close(*peer);
  ASSERT_TRUE(until({&a, &b}, [&] { return a.gone(*peer) != nullptr && b.gone(b.peer()) != nullptr; }));
}

}  // namespace vmem::rdma
