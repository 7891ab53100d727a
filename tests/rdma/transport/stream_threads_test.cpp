// Several channels of a stream transport, and a receiver that holds its sender up.
#include <chrono>
#include <tuple>

#include "rdma/transport/stream_node.hpp"

namespace vmem::rdma {
namespace {

using std::chrono::steady_clock;

TEST(StreamThreads, PagesBothWaysOverThreeChannelsArriveOnce) {
  const KeyringRef keyring = SecretFile().read();
  Node a, b;
  for (const auto& [node, id, listen] : {std::tuple{&a, 1, ""}, std::tuple{&b, 2, "127.0.0.1:0"}}) {
    StreamConfig config = node->config(static_cast<std::uint64_t>(id), listen, keyring);
    config.channels = 3;
    node->start_as(config);
  }
  const PeerId peer = *a.transport->connect(b.transport->address(), a.later());
  ASSERT_TRUE(until({&a, &b}, [&] { return a.connected() && b.connected(); }));
  constexpr std::size_t kMessages = 200;
  const auto from_a = a.outgoing(300'000, 77), from_b = b.outgoing(300'000, 77);
  std::size_t at_a = 0, at_b = 0;
  const auto counting = [](std::size_t& count) {
    return [&count](const Message& message) {
      count += TestNode::has_pattern(message.payload, 77) && !message.payload.empty() ? 1 : 0;
    };
  };
  a.on_message = counting(at_a);
  b.on_message = counting(at_b);
  for (std::size_t i = 0; i < kMessages; ++i) {
    a.send(peer, "page", {from_a}, a.later());
    b.send(b.peer(), "page", {from_b}, b.later());
  }
  ASSERT_TRUE(until({&a, &b}, [&] { return at_a == kMessages && at_b == kMessages; }));
  EXPECT_TRUE(until({&a, &b}, [&] { return a.under_way.empty() && b.under_way.empty(); }));
}

TEST(StreamThreads, WhoTakesNothingHoldsTheSenderUp) {
  Node a, b;
  a.start_as(a.config(1, "", nullptr));
  b.start_as(b.config(2, "127.0.0.1:0", nullptr));
  const PeerId peer = *a.transport->connect(b.transport->address(), a.later());
  ASSERT_TRUE(until({&a, &b}, [&] { return a.connected() && b.connected(); }));
  const std::string header(kMostHeaderBytes, 'x');
  // b's transport runs, but nobody polls its events.
  std::size_t posted = 0;
  const auto end = steady_clock::now() + std::chrono::seconds(20);
  for (int quiet = 0; quiet < 1000 && steady_clock::now() < end; ++quiet) {
    while (a.under_way.size() < kMostOutstanding && posted < 100'000) {
      a.send(peer, header, {}, a.later());
      ++posted;
      quiet = 0;
    }
    a.step();
    b.transport->progress();
  }
  EXPECT_LT(posted, 50'000u) << "they wait in the sockets and at the sender";
  ASSERT_TRUE(until({&a, &b}, [&] { return b.count<Message>() == posted; }));
}

}  // namespace
}  // namespace vmem::rdma
