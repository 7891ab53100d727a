// Daemons that are emptied under load, or that die: their pages move, or are copied again, by
// themselves.
#include <cstdio>
#include <future>
#include <nlohmann/json.hpp>
#include <random>

#include "runtime/cluster_fixture.hpp"

namespace vmem {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

class Drain : public ClusterApi {
 protected:
  struct Outcome {
    int code = 0;
    std::string text;
  };
  // A command of this program: all that it says, and its exit code.
  static Outcome run(const std::string& arguments) {
    std::FILE* const pipe = ::popen((program() + " " + arguments + " 2>&1").c_str(), "r");
    Outcome outcome;
    std::array<char, 4096> buffer{};
    while (const std::size_t bytes = std::fread(buffer.data(), 1, buffer.size(), pipe))
      outcome.text.append(buffer.data(), bytes);
    outcome.code = WEXITSTATUS(::pclose(pipe));
    return outcome;
  }
  Outcome node(const std::string& arguments) const { return run("node " + arguments + " --cluster " + cluster()); }
  std::uint64_t held_bytes(int id) const {
    for (const auto& each : nlohmann::json::parse(node("list --json").text))
      if (each.at("id") == id) return each.at("held_bytes");
    return 0;
  }
};

TEST_F(Drain, ADaemonIsEmptiedUnderLoadAtItsRateAndEnds) {
  constexpr std::uint64_t kPages = 64, kRate = 16 * kMiB;
  auto leaves = join();
  const auto second = join(), third = join();
  ASSERT_OK(start({{"cluster", cluster()}}));
  hold_pages(kPages);
  ASSERT_TRUE(within(milliseconds(5000), [&] { return held_bytes(1) > 16 * kMiB; }));
  const std::uint64_t held = held_bytes(1);
  const auto began = steady_clock::now();
  auto drained = std::async(std::launch::async, [&] { return node("drain 1 --wait --exit --rate 16MiB/s"); });
  std::mt19937 random(3);
  std::vector<std::uint64_t> versions(kPages, 1);
  auto longest = steady_clock::duration::zero();
  while (drained.wait_for(milliseconds(0)) != std::future_status::ready) {
    const std::uint64_t page = random() % kPages;
    const auto called = steady_clock::now();
    if (random() % 4 == 0) {
      write_page(page, ++versions[page]);
    } else {
      expect_page(page, versions[page]);
    }
    longest = std::max(longest, steady_clock::now() - called);
    if (HasFatalFailure() || steady_clock::now() - began > std::chrono::seconds(60)) break;
  }
  const auto took = steady_clock::now() - began;
  const Outcome outcome = drained.get();
  EXPECT_EQ(outcome.code, 0) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("node 1 is drained"));
  // The registry is read once a second, by three processes one after another.
  EXPECT_LT(took, milliseconds(held * 1500 / kRate + 5000)) << held << " bytes; " << outcome.text;
  EXPECT_LT(longest, std::chrono::seconds(3));
  EXPECT_EQ(leaves->process().wait(), 0) << "the daemon ends by itself";
  for (std::uint64_t page = 0; page < kPages; ++page) expect_page(page, versions[page]);
  EXPECT_EQ(stats().remote_copies_lost, 0u);
  EXPECT_EQ(stats().remote_checksum_failures, 0u);
}

TEST_F(Drain, ADaemonThatDrainsNoMoreIsUsedAgain) {
  const auto first = join(), second = join();
  ASSERT_OK(start({{"cluster", cluster()}}));
  const Outcome outcome = node("drain 1 --wait");
  EXPECT_EQ(outcome.code, 0) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("it holds nothing"));
  EXPECT_TRUE(within(milliseconds(5000), [] { return stats().remote_budget_bytes == 64 * kMiB; }));
  EXPECT_THAT(node("list").text, HasSubstr("; drains, and holds 0 B of pages"));
  EXPECT_THAT(node("undrain 1").text, HasSubstr("node 1 does not drain any more"));
  EXPECT_TRUE(within(milliseconds(5000), [] { return stats().remote_budget_bytes == 128 * kMiB; }));
  const Outcome again = node("undrain 1");
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.text, HasSubstr("node 1 does not drain"));
}

TEST_F(Drain, OfTheLastNodeWithRoomIsRefusedUnlessForced) {
  const auto daemon = join();
  ASSERT_OK(start({{"cluster", cluster()}}));
  hold_pages(40);
  ASSERT_TRUE(within(milliseconds(5000), [&] { return held_bytes(1) != 0; }));
  const Outcome refused = node("drain 1");
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.text, HasSubstr("node 1 is the last one that lends"));
  EXPECT_EQ(node("drain 7").code, 2);
  EXPECT_THAT(node("drain 2").text, HasSubstr("node 2 is a program and lends nothing"));
  EXPECT_EQ(node("drain 1 --force").code, 0);
  ::sleep(3);
  for (std::uint64_t page = 0; page < 40; ++page) expect_page(page, 1);
  const auto room = join();
  EXPECT_TRUE(within(milliseconds(10'000), [&] { return held_bytes(1) == 0; })) << node("list").text;
  for (std::uint64_t page = 0; page < 40; ++page) expect_page(page, 1);
}

TEST_F(Drain, CopiesOfADaemonThatWasKilledAreMadeAgainByThemselves) {
  auto dies = join({"--lend", "128MiB", "--label", "rack=a"});
  const auto second = join({"--lend", "128MiB", "--label", "rack=b"});
  const auto third = join({"--lend", "128MiB", "--label", "rack=c"});
  ASSERT_OK(start({{"cluster", cluster()}, {"replicas", "2"}}));
  constexpr std::uint64_t kPages = 50;
  hold_pages(kPages);
  ASSERT_TRUE(within(milliseconds(5000), [&] { return held_bytes(1) > 16 * kMiB; }));
  const std::uint64_t all = held_bytes(1) + held_bytes(2) + held_bytes(3);
  dies->process().signal(SIGKILL);
  EXPECT_TRUE(within(milliseconds(15'000), [&] { return held_bytes(2) + held_bytes(3) >= all; }))
      << all << "; " << node("list --json").text;
  EXPECT_GT(stats().remote_copies_lost, 0u);
  for (std::uint64_t page = 0; page < kPages; ++page) expect_page(page, 1);
}

}  // namespace
}  // namespace vmem
