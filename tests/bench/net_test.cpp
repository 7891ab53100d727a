// Runs each two-node scenario once with small sizes. The second node is a process of this machine.
#include "bench/second_node.hpp"

#include <gtest/gtest.h>
#include <signal.h>

#include <utility>

#include "base/sizes.hpp"
#include "scenario_fixture.hpp"

namespace vmem::bench {
namespace {

using NetTest = ScenarioTest;

TEST_F(NetTest, PagesToASecondNodeOfItsOwnAndBackAndStreamOverIt) {
  settings_.working_set_bytes = std::uint64_t{64} << 20;
  settings_.runtime_options = {{"remote_channels", "2"}};
  const auto records = run_scenario("net");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "net", 9));
  EXPECT_EQ(records[0]["options"]["page_bytes"], std::uint64_t{2} << 20);
  EXPECT_EQ(records[0]["options"]["channels"], 2);
  const std::string node = records[0]["options"]["node"];
  EXPECT_NE(node.find("2 channels"), std::string::npos) << node;
  EXPECT_EQ(records[5]["details"]["verified_bytes"], std::uint64_t{64} << 20);
  EXPECT_EQ(records[8]["options"]["remote_bytes"], std::uint64_t{384} << 20);
  for (const auto& record : records) {
    const std::string limit = record["limit_name"];
    const std::string message = format_bytes(record["options"]["page_bytes"].get<std::uint64_t>());
    EXPECT_NE(limit.find(message + ", 2 connections"), std::string::npos) << limit;
  }
}

TEST_F(NetTest, APublishedRegionComesFromADaemonOfAClusterOfItsOwn) {
  settings_.working_set_bytes = std::uint64_t{32} << 20;
  settings_.page_bytes = std::uint64_t{2} << 20;
  const auto records = run_scenario("cluster");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "cluster", 2));
  EXPECT_EQ(records[0]["options"]["page_bytes"], std::uint64_t{2} << 20);
}

TEST_F(NetTest, PagesToADaemonsHbmAndBackAreComparedWithItsMemory) {
  settings_.working_set_bytes = std::uint64_t{64} << 20;
  const auto records = run_scenario("lend");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "lend", 4));
  EXPECT_EQ(records[3]["options"]["page_bytes"], std::uint64_t{32} << 20);
  EXPECT_EQ(records[3]["details"]["verified_bytes"], std::uint64_t{64} << 20);
  const std::string node = records[0]["options"]["node"];
  EXPECT_NE(node.find("64 MiB, 64 MiB of it HBM"), std::string::npos) << node;
}

TEST_F(NetTest, ASecondNodeHasTheChannelsOfTheEnvironment) {
  settings_.working_set_bytes = std::uint64_t{16} << 20;
  settings_.page_bytes = std::uint64_t{2} << 20;
  setenv("VMEM_REMOTE_CHANNELS", "2", 1);
  const auto records = run_scenario("net");
  unsetenv("VMEM_REMOTE_CHANNELS");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "net", 5));
  const std::string node = records[0]["options"]["node"];
  EXPECT_NE(node.find("2 channels"), std::string::npos) << node;
}

TEST_F(NetTest, ASecondNodeHasTheCertificatesOfTheProgram) {
  settings_.runtime_options = {{"certificates", folder_ / "absent"}};
  const auto node = SecondNode::start(settings_, std::uint64_t{64} << 20);
  ASSERT_FALSE(node) << "it listens without certificates";
  EXPECT_NE(node.error().message.find(folder_ / "absent"), std::string::npos) << node.error().message;
}

TEST_F(NetTest, WhatANodeLendsIsRoomForStream) {
  const auto node = SecondNode::start(settings_, std::uint64_t{512} << 20);
  ASSERT_TRUE(node) << node.error().message;
  settings_.runtime_options = {{"remote", node->address()}, {"borrow", "400MiB"}};
  settings_.mode = "ro";
  const auto records = run_scenario("stream");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "stream", 1));
  EXPECT_EQ(records[0]["options"]["working_set_bytes"], std::uint64_t{384} << 20);
  EXPECT_EQ(records[0]["options"]["remote_bytes"], std::uint64_t{400} << 20);
}

TEST_F(NetTest, MetadataIsCountedWithEveryTierInUse) {
  const auto records = run_scenario("lookup");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "lookup", 4));
  EXPECT_EQ(records[3]["variant"], "metadata, every tier");
  EXPECT_GT(records[3]["details"]["node_used_bytes"], 0);
  EXPECT_GT(records[3]["details"]["disk_used_bytes"], 0);
  EXPECT_GT(records[3]["achieved"], records[2]["achieved"]) << "pages below host memory cost more";
}

TEST_F(NetTest, AWorkingSetThatANodeHasNoRoomForIsRefused) {
  const auto node = SecondNode::start(settings_, std::uint64_t{128} << 20);
  ASSERT_TRUE(node) << node.error().message;
  settings_.scenario = "stream";
  settings_.runtime_options = {{"remote", node->address()}};
  EXPECT_EQ(run(settings_), kExitBadOptions);
}

TEST(SecondNode, EndsWithItsOwner) {
  auto process = ChildProcess::start({"sleep", "1000"});
  ASSERT_TRUE(process) << process.error().message;
  const pid_t id = (*process)->id();
  process->reset();
  EXPECT_EQ(::kill(id, 0), -1);
}

TEST(ChildProcess, ALineIsFoundBehindOthersAndTheEndWithoutItIsToldInItsWords) {
  auto process = ChildProcess::start({"sh", "-c", "echo a warning >&2; echo ready 7; exec sleep 1000"});
  ASSERT_TRUE(process) << process.error().message;
  const auto line = (*process)->line_beginning("ready ", std::chrono::seconds(20));
  ASSERT_TRUE(line) << line.error().message;
  EXPECT_EQ(*line, "ready 7");
  process = ChildProcess::start({"sh", "-c", "echo not ready"});
  ASSERT_TRUE(process) << process.error().message;
  const auto none = (*process)->line_beginning("ready ", std::chrono::seconds(20));
  ASSERT_FALSE(none);
  EXPECT_TRUE(none.error().message.ends_with("ended; it said: not ready")) << none.error().message;
}

TEST(ChildProcess, AFailureIsToldInItsWords) {
  auto process = ChildProcess::start({"sh", "-c", "echo $GREETING; exit 3"}, {{"GREETING", "no way"}});
  ASSERT_TRUE(process) << process.error().message;
  const auto output = (*process)->output(std::chrono::seconds(20));
  ASSERT_FALSE(output);
  EXPECT_NE(output.error().message.find("status 3; it said: no way"), std::string::npos) << output.error().message;
  process = ChildProcess::start({"sh", "-c", "kill -9 $$"});
  const auto killed = (*process)->output(std::chrono::seconds(20));
  ASSERT_FALSE(killed);
  EXPECT_NE(killed.error().message.find("ended by signal 9"), std::string::npos) << killed.error().message;
  process = ChildProcess::start({"sleep", "1000"});
  const auto late = (*process)->output(std::chrono::milliseconds(1));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().status, VMEM_ERROR_TIMEOUT);
}

}  // namespace
}  // namespace vmem::bench
