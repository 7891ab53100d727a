// A server of a registry, the store that it writes to, and channels from clients to it: one that
// works, and one that loses, copies and delays messages.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cluster/registry/served/registry_server.hpp"
#include "cluster/registry/served/served_registry.hpp"

namespace vmem::cluster {

inline constexpr std::uint64_t kSecondUs = 1'000'000;

class MemoryStore final : public RegistryStore {
 public:
  Result<std::vector<File>> read_all() override {
    std::vector<File> all;
    for (const auto& [name, bytes] : files) all.push_back({name, bytes});
    return all;
  }
  Status write(const std::string& name, const std::string& bytes) override {
    ++writes;
    if (fails) return fail(VMEM_ERROR_INVALID_OPTION, "the disk is full");
    files[name] = bytes;
    return {};
  }

  std::map<std::string, std::string> files;
  bool fails = false;
  std::uint64_t writes = 0;
};

inline std::string new_folder() {
  std::string path = ::testing::TempDir() + "/vmem-registry-XXXXXX";
  EXPECT_NE(::mkdtemp(path.data()), nullptr);
  return path;
}

inline ServedLimits long_leases() {
  ServedLimits limits;
  limits.each.lease_seconds = 1000;
  return limits;
}

// A daemon that keeps a registry. Its machine's clock starts at some time of day.
struct ServedDaemon {
  static constexpr std::uint64_t kStartedUs = 1'800'000'000 * kSecondUs;

  void start(RegistryServer::Before before = RegistryServer::Before::nothing) {
    server.reset();
    auto created = RegistryServer::create(clock, {.store = store,
                                                  .started_us = kStartedUs + clock.now_us(),
                                                  .before = before,
                                                  .limits = limits,
                                                  .first_records = first_records});
    ASSERT_TRUE(created) << created.error().message;
    server = *std::move(created);
  }
  // "" if it does not run.
  std::string answer(const std::string& identity, const std::string& message) {
    if (!server) return "";
    std::string answer = server->answer(identity, message);
    EXPECT_LE(answer.size(), served::kMostMessageBytes);
    if (answered) answered();
    return answer;
  }

  ManualClock clock;
  RegistryStore* store = nullptr;
  ServedLimits limits = long_leases();
  std::function<std::vector<Edit>(std::uint64_t)> first_records;
  std::function<void()> answered;  // called after each question to it
  std::unique_ptr<RegistryServer> server;
};

class GoodChannel final : public RequestChannel {
 public:
  explicit GoodChannel(ServedDaemon& daemon, std::string identity = "key-1")
      : daemon_(daemon), identity_(std::move(identity)) {}
  void send(std::string message) override {
    ++sent;
    EXPECT_LE(message.size(), served::kMostMessageBytes);
    if (std::string answer = daemon_.answer(identity_, message); !answer.empty()) answers_.push_back(std::move(answer));
  }
  void receive(std::vector<std::string>& answers) override {
    for (std::string& each : answers_) answers.push_back(std::move(each));
    answers_.clear();
  }
  std::uint64_t sent = 0;

 private:
  ServedDaemon& daemon_;
  const std::string identity_;
  std::vector<std::string> answers_;
};

struct Weather {
  std::uint32_t lost = 0, doubled = 0, late = 0;  // of a thousand messages, each way
  std::uint64_t usual_us = 10'000, late_us = 2'000'000;
};

// Each message travels on its own, so they overtake each other.
class BadChannel final : public RequestChannel {
 public:
  BadChannel(ServedDaemon& daemon, const Weather& weather, std::uint64_t seed)
      : daemon_(daemon), weather_(weather), random_(seed) {}
  void send(std::string message) override { travel(questions_, message); }
  void receive(std::vector<std::string>& answers) override {
    const std::uint64_t now_us = daemon_.clock.now_us();
    arrive(questions_, now_us, [this](const std::string& question) {
      const std::string answer = daemon_.answer("key-1", question);
      if (!answer.empty()) travel(answers_, answer);
    });
    arrive(answers_, now_us, [&answers](const std::string& answer) { answers.push_back(answer); });
  }

 private:
  using Travelling = std::multimap<std::uint64_t, std::string>;  // by arrival
  bool chance(std::uint32_t of_a_thousand) { return random_() % 1000 < of_a_thousand; }
  void travel(Travelling& way, const std::string& message) {
    if (chance(weather_.lost)) return;
    for (int copies = chance(weather_.doubled) ? 2 : 1; copies > 0; --copies) {
      const std::uint64_t most_us = chance(weather_.late) ? weather_.late_us : weather_.usual_us;
      way.emplace(daemon_.clock.now_us() + random_() % (most_us + 1), message);
    }
  }
  template <class Act>
  static void arrive(Travelling& way, std::uint64_t now_us, Act act) {
    while (!way.empty() && way.begin()->first <= now_us) {
      const std::string message = std::move(way.begin()->second);
      way.erase(way.begin());
      act(message);
    }
  }

  ServedDaemon& daemon_;
  const Weather& weather_;
  std::mt19937_64 random_;
  Travelling questions_, answers_;
};

inline std::unique_ptr<ServedRegistry> served_client(const Clock& clock, RequestChannel& channel, std::uint64_t client,
                                                     std::uint64_t timeout_us = 8 * kSecondUs,
                                                     const std::string& cluster = "test") {
  auto created =
      ServedRegistry::create(clock, channel, {.cluster = cluster, .client = client, .timeout_us = timeout_us});
  EXPECT_TRUE(created) << created.error().message;
  return *std::move(created);
}

}  // namespace vmem::cluster
