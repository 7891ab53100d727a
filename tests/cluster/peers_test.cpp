#include "cluster/peers.hpp"

#include <gmock/gmock.h>

namespace vmem::cluster {
namespace {

using ::testing::HasSubstr;

TEST(Peers, AListIsParsed) {
  const auto peers = parse_peers("10.0.0.1:7000,2@node-b:7001,[fe80::1]:7002");
  ASSERT_TRUE(peers) << peers.error().message;
  EXPECT_EQ(*peers, (std::vector<Peer>{{{}, "10.0.0.1:7000"}, {NodeId{2}, "node-b:7001"}, {{}, "[fe80::1]:7002"}}));
  EXPECT_TRUE(parse_peers("")->empty());
}

TEST(Peers, WhatIsNoPeerIsRefusedByName) {
  for (const auto& [text, why] : {std::pair{"a:1,b", "'b' has no host and port"},
                                  {"a", "no host and port"},
                                  {":1", "no host and port"},
                                  {"a:", "no port"},
                                  {"a:0", "no port"},
                                  {"a:65536", "no port"},
                                  {"a:1x", "no port"},
                                  {"a:1,", "ends in a comma"},
                                  {"a:1,,b:1", "'' has no host"},
                                  {"@a:1", "no node id"},
                                  {"0@a:1", "no node id"},
                                  {"x@a:1", "no node id"},
                                  {"fe80::1:7000", "without brackets"}}) {
    const auto peers = parse_peers(text);
    ASSERT_FALSE(peers) << text;
    EXPECT_EQ(peers.error().status, VMEM_ERROR_INVALID_OPTION);
    EXPECT_THAT(peers.error().message, HasSubstr(why)) << text;
  }
}

}  // namespace
}  // namespace vmem::cluster
