// Runs every scenario once with small sizes: it ends, verifies its data, and its records have the
// fields that readers of the JSON need.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "scenario_fixture.hpp"

namespace vmem::bench {
namespace {

TEST_F(ScenarioTest, Stream) {
  const auto records = run_scenario("stream");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "stream", 2));
  EXPECT_EQ(records[0]["options"]["mode"], "ro");
  EXPECT_EQ(records[0]["options"]["working_set_bytes"], std::uint64_t{128} << 20);
  EXPECT_EQ(records[0]["options"]["page_bytes"], records[0]["options"]["chunk_bytes"]);
  EXPECT_TRUE(records[1]["details"].contains("processed_gb_per_s"));
}

TEST_F(ScenarioTest, StreamWithOneModeAndAChunkOfItsOwn) {
  settings_.mode = "rw";
  settings_.chunk_bytes = std::uint64_t{1} << 20;
  const auto records = run_scenario("stream");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "stream", 1));
  EXPECT_EQ(records[0]["options"]["chunk_bytes"], std::uint64_t{1} << 20);
}

TEST_F(ScenarioTest, Scale) {
  settings_.ratio = 8;
  ASSERT_NO_FATAL_FAILURE(expect_schema(run_scenario("scale"), "scale", 1));
}

TEST_F(ScenarioTest, Block) { expect_schema(run_scenario("block"), "block", 2); }
TEST_F(ScenarioTest, Random) { expect_schema(run_scenario("random"), "random", 1); }
TEST_F(ScenarioTest, Hit) { expect_schema(run_scenario("hit"), "hit", 5); }
TEST_F(ScenarioTest, Lookup) { expect_schema(run_scenario("lookup"), "lookup", 4); }
TEST_F(ScenarioTest, Alloc) { expect_schema(run_scenario("alloc"), "alloc", 3); }

TEST_F(ScenarioTest, Driver) { expect_schema(run_scenario("driver"), "driver", 25); }

TEST_F(ScenarioTest, TierAndCompressOnTheDiskOfTheTest) {
  settings_.runtime_options = {{"nvme", ".:64MiB"}};
  settings_.working_set_bytes = std::uint64_t{8} << 20;
  settings_.page_bytes = std::uint64_t{2} << 20;
  const auto tier = run_scenario("tier");
  ASSERT_NO_FATAL_FAILURE(expect_schema(tier, "tier", 2));
  EXPECT_EQ(tier[0]["details"]["queue"], "io_uring, depth 64, registered files");
  const auto records = run_scenario("compress");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "compress", 20));
  EXPECT_GT(records[1]["details"]["compressed_bytes"], 0u) << "lz4, zeros";
}

TEST_F(ScenarioTest, StreamOverAChainWithFiles) {
  settings_.runtime_options = {{"nvme", ".:1GiB"}};
  settings_.host_bytes = std::uint64_t{64} << 20;
  settings_.mode = "ro";
  const auto records = run_scenario("stream");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "stream", 1));
  EXPECT_EQ(records[0]["options"]["working_set_bytes"], std::uint64_t{384} << 20);
}

TEST_F(ScenarioTest, ADiskOfTheEnvironmentIsTheLimitOfAStreamOverIt) {
  setenv("VMEM_NVME", ".:1GiB", 1);
  settings_.host_bytes = std::uint64_t{64} << 20;
  settings_.mode = "ro";
  const auto records = run_scenario("stream");
  unsetenv("VMEM_NVME");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "stream", 1));
  EXPECT_EQ(records[0]["limit_name"], "reading the disk");
  EXPECT_EQ(records[0]["goal"]["needs"], "host");
}

TEST_F(ScenarioTest, PeersOfTheEnvironmentAreMeasured) {
  setenv("VMEM_EMU", "devices=3,h2d=2,d2h=2,duplex=4,copy_us=10", 1);
  setenv("VMEM_PEERS", "2:128MiB", 1);
  settings_.mode = "ro";
  const auto records = run_scenario("peer");
  unsetenv("VMEM_PEERS");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "peer", 2));
  const std::string limit = records[0]["limit_name"];
  EXPECT_TRUE(limit.ends_with("from device 2")) << limit;
}

TEST_F(ScenarioTest, PeerOfTwoGpus) {
  setenv("VMEM_EMU", "devices=2,h2d=2,d2h=2,duplex=4,copy_us=10", 1);
  const auto records = run_scenario("peer");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "peer", 3));
  EXPECT_GT(records[0]["details"]["moved_in_bytes"], 0);
  EXPECT_EQ(records[0]["options"]["peer_bytes"], std::uint64_t{128} << 20);
  EXPECT_EQ(records[2]["options"]["ratio"], 1.75) << "1.8, in whole pages";
  EXPECT_FALSE(records[2]["details"].contains("limit_best")) << "of the copies, which are not the limit";
  const bool local = records[2]["limit_name"] == "the same with everything in HBM";
  EXPECT_EQ(records[2]["details"]["limit_samples"], local ? 1 : 2);
}

TEST_F(ScenarioTest, PeerOfASingleGpuIsRefused) {
  setenv("VMEM_EMU", "devices=1", 1);
  settings_.scenario = "peer";
  EXPECT_EQ(run(settings_), kExitBadOptions);
}

TEST_F(ScenarioTest, Matmul) { expect_schema(run_scenario("matmul"), "matmul", 1); }

TEST_F(ScenarioTest, FileOfAnyLength) {
  settings_.input = folder_ / "input";
  std::ofstream out(settings_.input, std::ios::binary);
  std::string block(1 << 20, '\0');
  for (int i = 0; i < 40; ++i) {
    for (std::size_t k = 0; k < block.size(); ++k)
      block[k] = static_cast<char>(k * 31 + static_cast<std::size_t>(i) * 7 + k / 251);
    out << block;
  }
  out << "an odd end";
  out.close();
  const auto records = run_scenario("file");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "file", 1));
  EXPECT_EQ(records[0]["options"]["file_bytes"], (std::uint64_t{40} << 20) + 10);
}

TEST_F(ScenarioTest, MapOfAFileOfFourTimesHbm) {
  settings_.input = folder_;
  const auto records = run_scenario("map");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "map", 1));
  EXPECT_EQ(records[0]["details"]["moved_out_bytes"], 0);
  EXPECT_LT(records[0]["details"]["host_used_bytes_peak"], std::uint64_t{48} << 20);
}

TEST_F(ScenarioTest, BadSettingsEndWithTheirOwnExitCode) {
  const auto code_of = [](Settings settings) { return run(settings); };
  Settings settings = settings_;
  settings.scenario = "nonsense";
  EXPECT_EQ(code_of(settings), kExitBadOptions);
  settings.scenario = "file";
  EXPECT_EQ(code_of(settings), kExitBadOptions) << "no --input";
  settings.input = folder_ / "absent";
  EXPECT_EQ(code_of(settings), kExitBadOptions);
  settings.input = folder_;
  EXPECT_EQ(code_of(settings), kExitBadOptions) << "a folder";
  settings.scenario = "stream";
  settings.mode = "wo";
  EXPECT_EQ(code_of(settings), kExitBadOptions);
  settings.mode = "ro";
  settings.hbm_bytes = std::uint64_t{1} << 50;
  EXPECT_EQ(code_of(settings), kExitBadOptions);
  settings.hbm_bytes = settings_.hbm_bytes;
  settings.runtime_options = {{"no_such_option", "1"}};
  EXPECT_EQ(code_of(settings), kExitBadOptions);
}

}  // namespace
}  // namespace vmem::bench
