// Runs a small scenario on the emulated driver and reads its output files.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/bench.hpp"

namespace vmem::bench {

class ScenarioTest : public testing::Test {
 protected:
  void SetUp() override {
    settings_.driver = "emulated";
    settings_.hbm_bytes = std::uint64_t{32} << 20;
    settings_.repeats = 1;
    settings_.passes = 1;
    folder_ = std::filesystem::temp_directory_path() / ("vmem_bench_test." + std::to_string(getpid()));
    std::filesystem::create_directory(folder_);
    settings_.json_path = folder_ / "records.json";
    settings_.command = "vmem bench";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  nlohmann::json run_scenario(const char* name) {
    settings_.scenario = name;
    EXPECT_EQ(run(settings_), kExitOk);
    std::ifstream in(settings_.json_path);
    return nlohmann::json::parse(in, nullptr, false);
  }

  Settings settings_;
  std::filesystem::path folder_;
};

inline void expect_schema(const nlohmann::json& records, const std::string& scenario, std::size_t count) {
  ASSERT_TRUE(records.is_array());
  ASSERT_EQ(records.size(), count);
  for (const auto& record : records) {
    for (const char* field : {"scenario", "options", "device", "emulated", "limit", "achieved", "ratio", "unit",
                              "verified", "commit", "machine", "command"})
      EXPECT_TRUE(record.contains(field)) << field;
    EXPECT_EQ(record["scenario"], scenario);
    EXPECT_EQ(record["emulated"], true);
    EXPECT_EQ(record["verified"], true) << record["mismatch"];
    EXPECT_GT(record["achieved"].get<double>(), 0);
    if (const auto& goal = record["goal"]; goal.is_object()) {
      EXPECT_EQ(goal["met"].is_boolean(), goal["needs"] == "host")
          << "beside an emulated GPU only goals of the host are judged";
    }
    if (record["limit"].is_number())
      EXPECT_NEAR(record["ratio"].get<double>(), record["achieved"].get<double>() / record["limit"].get<double>(),
                  1e-9);
    else
      EXPECT_TRUE(record["ratio"].is_null());
  }
}

}  // namespace vmem::bench
