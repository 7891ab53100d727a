// Runs each two-node scenario once with small sizes. The second node is a process of this machine.
#include "bench/second_node.hpp"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/sizes.hpp"
#include "bench/round_trip.hpp"
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
  settings_.rows = {"published"};
  const auto records = run_scenario("cluster");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "cluster", 2));
  EXPECT_EQ(records[0]["options"]["page_bytes"], std::uint64_t{2} << 20);
}

TEST_F(NetTest, APageIsFetchedAloneAndItsGoalIsForALink) {
  settings_.working_set_bytes = std::uint64_t{32} << 20;
  settings_.rows = {"page"};
  const auto records = run_scenario("cluster");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "cluster", 2));
  EXPECT_EQ(records[0]["variant"], "one page of 2 MiB, median");
  EXPECT_EQ(records[0]["options"]["pages"], 16);
  EXPECT_EQ(records[0]["details"]["fetched_pages"], 16) << "no page came ahead of its use";
  EXPECT_EQ(records[0]["goal"]["needs"], "link");
  EXPECT_EQ(records[1]["variant"], "one page of 2 MiB, p99");
  EXPECT_GE(records[1]["limit"], records[0]["limit"]);
}

TEST_F(NetTest, ATableGoesToSeveralReadersAndItsOwnerCountsWhatItSends) {
  settings_.working_set_bytes = std::uint64_t{32} << 20;
  settings_.rows = {"fanout"};
  const auto records = run_scenario("cluster");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "cluster", 6));
  EXPECT_EQ(records[3]["variant"], "table for 1 reader, sent by its owner");
  EXPECT_EQ(records[3]["achieved"], 1) << "one reader has each page from the owner, once";
  EXPECT_EQ(records[5]["options"]["readers"], 3);
  EXPECT_EQ(records[5]["goal"]["needs"], "link");
  EXPECT_GE(records[5]["achieved"].get<double>(), 1);
  EXPECT_LE(records[5]["achieved"].get<double>(), 3) << "more than a table for each";
}

TEST_F(NetTest, PagesOverflowToADaemonsMemoryAndToItsHbm) {
  settings_.working_set_bytes = std::uint64_t{64} << 20;
  settings_.page_bytes = std::uint64_t{2} << 20;
  settings_.host_bytes = std::uint64_t{32} << 20;
  settings_.mode = "ro";
  settings_.rows = {"overflow"};
  const auto records = run_scenario("cluster");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "cluster", 4));
  EXPECT_EQ(records[0]["variant"], "overflow to memory, read-only 8x");
  EXPECT_EQ(records[0]["options"]["remote_bytes"], std::uint64_t{256} << 20);
  EXPECT_EQ(records[1]["variant"], "overflow to HBM, read-only 8x");
  EXPECT_EQ(records[2]["variant"], "overflow, 2 MiB pages to HBM, out");
  EXPECT_EQ(records[3]["details"]["verified_bytes"], std::uint64_t{64} << 20);
}

TEST_F(NetTest, ADaemonIsDrainedUnderLoadAndBack) {
  settings_.working_set_bytes = std::uint64_t{64} << 20;
  settings_.rows = {"drain"};
  const auto records = run_scenario("cluster");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "cluster", 2));
  for (const auto& record : records) {
    const auto held = record["options"]["held_bytes"].get<std::uint64_t>();
    EXPECT_GE(held, std::uint64_t{64} << 20);
    EXPECT_LE(record["limit"].get<double>(), double(held) / 1e6) << "slower than 1 MB/s";
    EXPECT_GE(record["details"]["scan_passes"], 1);
    EXPECT_LE(record["details"]["longest_call_s"], record["details"]["call_deadline_s"]);
    EXPECT_LE(record["details"]["no_pages_s"], record["achieved"]);
  }
  EXPECT_LE(records[0]["options"]["held_bytes"].get<double>() / records[0]["limit"].get<double>(), 256 << 20)
      << "the drain's own rate bounds what it may take";
}

TEST_F(NetTest, RowsThatDoNotExistAndAPageServerWithoutItsClusterAreRefused) {
  settings_.scenario = "cluster";
  settings_.rows = {"page", "fan-out"};
  EXPECT_EQ(run(settings_), kExitBadOptions);
  settings_.rows = {"page"};
  settings_.working_set_bytes = std::uint64_t{4} << 20;
  settings_.page_server = "127.0.0.1:1";
  EXPECT_EQ(run(settings_), kExitBadOptions) << "its daemon is in no cluster that is named";
  settings_.rows = {"drain"};
  EXPECT_EQ(run(settings_), kExitBadOptions) << "nothing asks it for a page";
}

TEST(RoundTrip, APageComesWholeAndAServerThatIsNotThereIsNamed) {
  constexpr std::uint64_t kBytes = 3 << 20;
  for (const SocketKind kind : {SocketKind::local, SocketKind::tcp}) {
    const auto trip = RoundTrip::start(kind, kBytes);
    ASSERT_TRUE(trip) << trip.error().message;
    for (int fetch = 0; fetch < 3; ++fetch) {
      std::vector<std::byte> page(kBytes);
      const Status fetched = trip->fetch(page);
      ASSERT_TRUE(fetched) << fetched.error().message;
      EXPECT_EQ(std::ranges::count(page, std::byte{1}), kBytes);
    }
  }
  const auto none = RoundTrip::connect("127.0.0.1:1");
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("--page-server 127.0.0.1:1"), std::string::npos) << none.error().message;
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

// Over UCX they are fetched directly: the memory of an emulated GPU is host memory.
TEST_F(NetTest, ARowSaysHowPagesCameBackFromHbm) {
  settings_.working_set_bytes = std::uint64_t{16} << 20;
  settings_.page_bytes = std::uint64_t{2} << 20;
  const auto staged = run_scenario("lend");
  setenv("VMEM_TEST_UCX_TLS", "tcp", 1);
  setenv("VMEM_FABRIC", "ucx:lo", 1);
  const auto direct = run_scenario("lend");
  unsetenv("VMEM_FABRIC");
  ASSERT_NO_FATAL_FAILURE(expect_schema(direct, "lend", 2));
  EXPECT_EQ(staged[1]["details"]["pages_sent_directly"], 0);
  EXPECT_GE(staged[1]["details"]["pages_sent_through_staging"], 8);
  EXPECT_GE(direct[1]["details"]["pages_sent_directly"], 8);
  EXPECT_EQ(direct[1]["details"]["pages_sent_through_staging"], 0);
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

TEST(ChildProcess, LinesAreAnsweredOneAfterTheOtherAndAProcessThatEndedTakesNone) {
  auto process = ChildProcess::start({"sh", "-c", "while read word; do echo got $word; done; echo over"}, {},
                                     ChildProcess::Input::lines);
  ASSERT_TRUE(process) << process.error().message;
  for (const char* word : {"one", "two"}) {
    ASSERT_TRUE((*process)->write_line(word));
    const auto line = (*process)->next_line_beginning("got ", std::chrono::seconds(20));
    ASSERT_TRUE(line) << line.error().message;
    EXPECT_EQ(*line, std::string("got ") + word);
  }
  process = ChildProcess::start({"sh", "-c", "exit 3"}, {}, ChildProcess::Input::lines);
  ASSERT_FALSE((*process)->line_beginning("nothing", std::chrono::seconds(20)));
  const Status refused = (*process)->write_line("one");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("takes no 'one'"), std::string::npos) << refused.error().message;
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
