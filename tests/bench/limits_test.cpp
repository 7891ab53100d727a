// The limits that figures are held against: bytes, copies and connections as vmem's, over all links
// together, and a figure above one is noticed.
#include <gtest/gtest.h>

#include "bench/bare_disk.hpp"
#include "bench/bare_network.hpp"
#include "bench/peer_limit.hpp"
#include "bench/scenarios/streaming.hpp"
#include "bench/table.hpp"
#include "peer/lender.hpp"
#include "scenario_fixture.hpp"

namespace vmem::bench {
namespace {

// Notes what it is asked to measure.
class WatchingLimit final : public StreamLimit {
 public:
  Status prepare(std::uint64_t page_bytes, std::uint64_t bytes) override {
    page_bytes_ = page_bytes;
    bytes_ = bytes;
    return {};
  }
  Result<double> rate(StreamMode /*mode*/) override { return 1.0; }
  std::string name(StreamMode /*mode*/) const override { return "nothing"; }
  std::uint64_t crossed(const Traffic& traffic, StreamMode mode) const override {
    return mode == StreamMode::read_only ? traffic.in_bytes : traffic.moved();
  }

  std::uint64_t page_bytes_ = 0, bytes_ = 0;
};

class LimitsTest : public ScenarioTest {
 protected:
  void SetUp() override {
    ScenarioTest::SetUp();
    auto gpu = Gpu::open("emulated", 0);
    ASSERT_TRUE(gpu) << gpu.error().message;
    gpu_ = std::move(*gpu);
    auto launcher = Launcher::load(*gpu_);
    ASSERT_TRUE(launcher) << launcher.error().message;
    launcher_.emplace(std::move(*launcher));
  }
  Streamed stream(StreamMode mode, StreamLimit& limit) {
    RowPrinter rows(*gpu_);
    Context context{settings_, *gpu_, *launcher_, progress_, records_, rows};
    const auto sizes = plan_sizes(settings_, *gpu_, 4);
    EXPECT_TRUE(sizes) << sizes.error().message;
    auto streamed = measure_stream(context, *sizes, mode, limit);
    EXPECT_TRUE(streamed) << streamed.error().message;
    return *streamed;
  }

  std::unique_ptr<Gpu> gpu_;
  std::optional<Launcher> launcher_;
  Progress progress_{stderr};
  std::vector<Record> records_;
};

TEST_F(LimitsTest, TheLimitOfAStreamHasCopiesOfItsPagesSizeAndItsBytes) {
  WatchingLimit limit;
  const Streamed streamed = stream(StreamMode::read_only, limit);
  EXPECT_EQ(limit.page_bytes_, streamed.page_bytes);
  EXPECT_EQ(limit.bytes_, std::uint64_t{128} << 20);
}

TEST_F(LimitsTest, AStreamIsHeldAgainstTheLinkByTheBytesThatCrossIt) {
  WatchingLimit limit;
  const Streamed streamed = stream(StreamMode::read_only, limit);
  EXPECT_DOUBLE_EQ(streamed.rates.achieved.median(), double(streamed.traffic.in_bytes) / streamed.seconds / 1e9);
  EXPECT_GT(streamed.hit_share(), 0) << "a part stays in HBM";
  EXPECT_GT(streamed.processed.median(), streamed.rates.achieved.median());
}

TEST_F(ScenarioTest, TheSpeedOfTheWorkIsTheSecondFigureOfAStream) {
  for (const auto& record : run_scenario("stream")) {
    EXPECT_GT(record["details"]["processed_gb_per_s"].get<double>(), record["achieved"].get<double>());
    EXPECT_EQ(record["limit_is"], "bound");
  }
}

TEST_F(ScenarioTest, SeveralDirectoriesAreTheLimitTogether) {
  const std::string other = folder_ / "other";
  std::filesystem::create_directory(other);
  settings_.runtime_options = {{"nvme", ".:1GiB," + other + ":1GiB"}};
  settings_.host_bytes = std::uint64_t{64} << 20;
  settings_.mode = "ro";
  const auto records = run_scenario("stream");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "stream", 1));
  EXPECT_EQ(records[0]["limit_name"], "reading 2 directories at once");
}

TEST_F(ScenarioTest, AStreamOverLentMemoryIsHeldAgainstTheLinksToItsLenders) {
  setenv("VMEM_EMU", "devices=3,h2d=2,d2h=2,duplex=4,copy_us=10", 1);
  settings_.runtime_options = {{"peers", "1:64MiB,2:64MiB"}};
  settings_.mode = "ro";
  const auto records = run_scenario("stream");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "stream", 1));
  const std::string limit = records[0]["limit_name"];
  EXPECT_TRUE(limit.starts_with("peer copies") && limit.ends_with("from devices 1, 2")) << limit;
  EXPECT_GT(records[0]["achieved"].get<double>(), 0) << "bytes that came from peers";
}

TEST_F(ScenarioTest, PagesOfThePeerScenarioDoNotLieInHostMemory) {
  setenv("VMEM_EMU", "devices=2,h2d=2,d2h=2,duplex=4,copy_us=10", 1);
  settings_.mode = "rw";
  const auto records = run_scenario("peer");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "peer", 1));
  EXPECT_EQ(records[0]["options"]["host_bytes"], std::uint64_t{64} << 20);
}

TEST(Lenders, ALendingProcessIsAskedForItsDevice) {
  setenv("VMEM_EMU", "devices=3", 1);
  const auto gpu = Gpu::open("emulated", 0);
  ASSERT_TRUE(gpu) << gpu.error().message;
  CUdevice device = 0;
  ASSERT_EQ((*gpu)->table().cuDeviceGet(&device, 2), CUDA_SUCCESS);
  const auto there = gpu::PrimaryContext::retain((*gpu)->driver_ref(), device);
  ASSERT_TRUE(there) << there.error().message;
  const std::string path = std::filesystem::temp_directory_path() / ("vmem_lender." + std::to_string(getpid()));
  const auto lender = peer::Lender::create({.driver = (*gpu)->driver_ref(),
                                            .device = device,
                                            .context = there->context(),
                                            .path = path,
                                            .most_bytes = std::uint64_t{64} << 20,
                                            .on_change = [] {}});
  ASSERT_TRUE(lender) << lender.error().message;
  const std::vector<PeerSpec> peers{{1, {}, ""}, {0, {}, path}, {2, {}, ""}};
  const auto devices = lending_devices(**gpu, peers);
  ASSERT_TRUE(devices) << devices.error().message;
  EXPECT_EQ(*devices, (std::vector{1, 2}));
}

TEST(NetworkLimit, HasAsManyConnectionsAndMessagesOfThePagesSize) {
  Options options;
  options.remote = {"127.0.0.1:1", "127.0.0.1:2"};
  options.remote_channels = 3;
  const std::vector<NodePath> nodes = node_paths(options);
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[1].connections, 3u);
  EXPECT_EQ(nodes[1].sockets, SocketKind::local) << "as vmem without a secret";
  NetworkLimit limit(nodes, std::uint64_t{16} << 20);
  const Status ready = limit.prepare(std::uint64_t{4} << 20, std::uint64_t{32} << 20);
  ASSERT_TRUE(ready) << ready.error().message;
  const auto rate = limit.rate(StreamMode::read_write);
  ASSERT_TRUE(rate) << rate.error().message;
  EXPECT_GT(*rate, 0);
  const std::string name = limit.name(StreamMode::read_write);
  EXPECT_TRUE(name.starts_with("2 nodes at once, each: ")) << name;
  EXPECT_NE(name.find("4 MiB, 3 connections between two processes here, both ways"), std::string::npos) << name;
}

TEST_F(ScenarioTest, WhatLiesInHbmIsNoPartOfTheLimitOfOneLaunch) {
  for (const char* scenario : {"block", "random"}) {
    for (const auto& record : run_scenario(scenario)) {
      const auto& details = record["details"];
      const double share = details["resident_share"].get<double>();
      EXPECT_GT(share, 0);
      EXPECT_NEAR(record["achieved"].get<double>(), (1 - share) * details["processed_gb_per_s"].get<double>(), 1e-9);
    }
  }
}

TEST_F(ScenarioTest, ARegionAllInHbmHasNoLinkToBeHeldAgainst) {
  settings_.ratio = 0.5;
  settings_.scenario = "block";
  EXPECT_EQ(run(settings_), kExitBadOptions);
}

TEST_F(ScenarioTest, ThreadsThatHitAreHeldAgainstEachOfThemAlone) {
  const auto records = run_scenario("hit");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "hit", 5));
  for (const int row : {0, 1, 2}) EXPECT_EQ(records[row]["details"]["achieved_quartiles"].size(), 3u);
  for (const int row : {3, 4}) {
    EXPECT_EQ(records[row]["limit_name"], "the sum of the 8 threads, each alone");
    EXPECT_EQ(records[row]["details"]["achieved_samples"], 3) << "turns of a repeat";
    EXPECT_TRUE(records[row]["details"].contains("achieved_spread"));
  }
}

TEST_F(ScenarioTest, LookupIsJudgedBesideAnEmulatedGpuAndKeepsItsSpread) {
  for (const auto& record : run_scenario("lookup")) {
    const std::string variant = record["variant"];
    if (variant.starts_with("metadata")) {
      EXPECT_TRUE(record["goal"]["met"].is_boolean()) << variant;
      EXPECT_TRUE(record["details"].contains("all_small_allocations")) << variant;
    } else {
      EXPECT_EQ(record["details"]["achieved_quartiles"].size(), 3u) << variant;
      EXPECT_EQ(record["goal"]["met"].is_boolean(), variant.starts_with("address to page")) << variant;
    }
  }
}

TEST_F(ScenarioTest, ScaleKeepsTheSpreadOfBothSides) {
  settings_.ratio = 8;
  const auto records = run_scenario("scale");
  ASSERT_NO_FATAL_FAILURE(expect_schema(records, "scale", 1));
  EXPECT_EQ(records[0]["limit_is"], "reference");
  for (const char* spread : {"achieved_spread", "limit_spread"}) EXPECT_TRUE(records[0]["details"].contains(spread));
}

TEST(LimitExceeded, IsAFigureAboveTheBestSampleOfWhatBoundsIt) {
  Record record;
  Measured measured;
  for (const double limit : {10.0, 12.0, 11.0}) measured.limit.add(limit);
  measured.achieved.add(11.5);
  record.set(measured);
  EXPECT_FALSE(limit_exceeded(record)) << "within what the limit itself varies by";
  record.achieved = 12.5;
  EXPECT_TRUE(limit_exceeded(record));
  record.limit_is = Record::LimitIs::reference;
  EXPECT_FALSE(limit_exceeded(record));
}

}  // namespace
}  // namespace vmem::bench
