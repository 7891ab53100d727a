// How other nodes reach this one: the effect of the options.
#include "runtime/remote/nodes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace vmem::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

struct NoReceiver final : rdma::Receiver {
  std::optional<rdma::Claim> claim(rdma::PeerId, rdma::ConstBytes, std::uint64_t) override { return std::nullopt; }
};

TEST(Nodes, AFabricIsRdmaOnTheNamedDevicesAndNothingElse) {
  EXPECT_THAT(runtime::fabric_settings("mlx5_0:1,mlx5_1:1"),
              UnorderedElementsAre(Pair("TLS", "ib"), Pair("NET_DEVICES", "mlx5_0:1,mlx5_1:1")));
}

// UCX itself refuses it; over TCP it would listen there.
TEST(Nodes, AFabricOfACardWithoutRdmaIsRefused) {
  const SteadyClock clock;
  NoReceiver receiver;
  const auto made = runtime::make_transport({.self = {NodeId{1}, Incarnation{1}}, .fabric = "lo"}, clock, receiver);
  ASSERT_FALSE(made);
  if (made.error().message.contains("cannot be loaded")) GTEST_SKIP() << made.error().message;
  EXPECT_EQ(made.error().status, VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(made.error().message, AllOf(HasSubstr("--fabric ucx:lo"), HasSubstr("ucx_info -d")));
}

}  // namespace
}  // namespace vmem::test
