// Programs and daemons that find each other by the registry of their cluster.
#include <fmt/ranges.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "runtime/cluster_fixture.hpp"

namespace vmem {
namespace {

using std::chrono::steady_clock;
using ::testing::HasSubstr;

TEST_F(ClusterApi, AProgramFindsTheDaemonsOfItsCluster) {
  const auto first = join(), second = join();
  ASSERT_OK(start({{"cluster", cluster()}}));
  EXPECT_EQ(stats().remote_budget_bytes, 128 * kMiB);
  constexpr std::uint64_t kPages = 80;  // 160 MiB, with 64 MiB of HBM and host memory
  hold_pages(kPages);
  expect_pages(kPages);
  EXPECT_GT(stats().remote_stored_bytes, 90 * kMiB);
  EXPECT_EQ(stats().remote_checksum_failures, 0u);
}

TEST_F(ClusterApi, RoomThatJoinsIsUsedWithoutARestart) {
  ASSERT_OK(start({{"cluster", cluster()}}));
  EXPECT_EQ(stats().remote_budget_bytes, 0u);
  constexpr std::uint64_t kPages = 40;
  void* memory = nullptr;
  EXPECT_EQ(vmem_malloc(&memory, kPages * kPage, 0, nullptr), VMEM_ERROR_OUT_OF_MEMORY);
  const auto daemon = join();
  EXPECT_TRUE(within(std::chrono::milliseconds(2000), [] { return stats().remote_budget_bytes == 64 * kMiB; }));
  ASSERT_OK(vmem_malloc(&memory, kPages * kPage, 0, nullptr));
  base = static_cast<std::byte*>(memory);
  for (std::uint64_t page = 0; page < kPages; ++page) write_page(page, 1);
  std::vector<std::uint64_t> read(kPage / 8);
  for (std::uint64_t page = 0; page < kPages; ++page) {
    ASSERT_OK(vmem_read(read.data(), base + page * kPage, kPage));
    ASSERT_EQ(read, page_words(page, 1)) << page;
  }
}

TEST_F(ClusterApi, ADaemonThatLeavesIsGoneFromTheListAndFromTheBudget) {
  const auto stays = join();
  auto leaves = join();
  ASSERT_OK(start({{"cluster", cluster()}}));
  EXPECT_EQ(stats().remote_budget_bytes, 128 * kMiB);
  leaves->process().signal(SIGTERM);
  EXPECT_TRUE(within(std::chrono::milliseconds(5000), [] { return stats().remote_budget_bytes == 64 * kMiB; }));
  EXPECT_TRUE(within(std::chrono::milliseconds(5000), [&] {
    return nlohmann::json::parse(output("node list --json --cluster " + cluster())).size() == 2;
  })) << output("node list --cluster " + cluster());
}

TEST_F(ClusterApi, PagesAreKeptByADaemonThatIsAMemberAnew) {
  const auto daemon = join({"--lend", "160MiB"});
  ASSERT_OK(start({{"cluster", cluster()}}));
  constexpr std::uint64_t kPages = 80;  // 160 MiB, with 64 MiB of HBM and host memory
  hold_pages(kPages);
  forget_node(1);
  const auto is_anew = [&] {
    const auto nodes = nlohmann::json::parse(output("node list --json --cluster " + cluster()));
    return nodes.size() == 2 && nodes[0].at("id") == 2 && nodes[1].at("id") == 3;
  };
  ASSERT_TRUE(within(std::chrono::milliseconds(10'000), is_anew)) << output("node list --cluster " + cluster());
  expect_pages(kPages);
  void* more = nullptr;
  const auto has_room = [&] { return vmem_malloc(&more, 20 * kPage, 0, nullptr) == VMEM_OK; };
  EXPECT_TRUE(within(std::chrono::milliseconds(5'000), has_room)) << "it is used as before";
  expect_pages(kPages);
  EXPECT_EQ(stats().remote_copies_lost, 0u);
  EXPECT_EQ(stats().remote_reconnects, 0u);
}

TEST_F(ClusterApi, TheListSaysWhatEachNodeIs) {
  const auto daemon = join({"--label", "rack=a", "--advertise", "10.0.0.1:7000,127.0.0.1:7000"});
  EXPECT_THAT(daemon->ready(), HasSubstr("lends 64 MiB of memory"));
  const auto nodes = nlohmann::json::parse(output("node list --json --cluster " + cluster()));
  ASSERT_EQ(nodes.size(), 1u);
  EXPECT_EQ(nodes[0].at("kind"), "daemon");
  EXPECT_EQ(nodes[0].at("addresses"), (std::vector<std::string>{"10.0.0.1:7000", "127.0.0.1:7000"}));
  EXPECT_EQ(nodes[0].at("labels").at("rack"), "a");
  EXPECT_EQ(nodes[0].at("memory_bytes"), 64 * kMiB);
  EXPECT_EQ(nodes[0].at("drains"), false);
  EXPECT_THAT(output("node list --cluster " + cluster()), HasSubstr("lends 64 MiB of memory; host="));
}

TEST_F(ClusterApi, ANodeWithAnotherAddressSpaceIsRefusedAndHearsWhy) {
  const auto daemon = join();
  ASSERT_EQ(start({{"cluster", cluster()}, {"base", "0x7c0000000000"}}), VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(vmem_last_error(), HasSubstr("0x7c0000000000"));
  EXPECT_THAT(vmem_last_error(), HasSubstr("0x110000000000"));
  ASSERT_OK(start({{"cluster", cluster()}}));
}

TEST_F(ClusterApi, AMemberThatCannotBeReachedIsNoReasonNotToStart) {
  const auto daemon = join({"--advertise", "127.0.0.1:1"});
  const auto good = join();
  ASSERT_OK(start({{"cluster", cluster()}}));
  EXPECT_EQ(stats().remote_budget_bytes, 64 * kMiB);
}

// Daemons that no node, or not every node, could talk to.
class ClusterTrust : public ClusterApi {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_);
    for (const char* name : {"one", "other"}) output(fmt::format("secret new {}", file(name)));
  }
  void TearDown() override {
    ClusterApi::TearDown();
    std::filesystem::remove_all(folder_);
  }
  std::string file(const std::string& name) const { return folder_ / name; }
  // What a daemon says that does not start.
  std::string refusal(const std::string& options) const {
    return output_of(
        fmt::format("timeout 20 {} daemon --listen 127.0.0.1:0 --lend 64MiB --cluster {} {} 2>&1; echo status $?",
                    program(), cluster(), options));
  }
  std::size_t members() const {
    return nlohmann::json::parse(output("node list --json --cluster " + cluster())).size();
  }

 private:
  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / fmt::format("vmem-cluster-trust-{}", ::getpid());
};

TEST_F(ClusterTrust, ADaemonWithASecretIsRefusedWhereNobodyHasOne) {
  const auto daemon = join();
  const std::string said = refusal("--secret " + file("one"));
  EXPECT_THAT(said, HasSubstr("runs without secret and certificates, and this one with a secret (option secret)"));
  EXPECT_THAT(said, HasSubstr("status 2"));
  EXPECT_EQ(members(), 1u);
}

TEST_F(ClusterTrust, ADaemonWithAnotherSecretIsRefusedByName) {
  const auto daemon = join({"--secret", file("one")});
  const std::string said = refusal("--secret " + file("other"));
  EXPECT_THAT(said, HasSubstr("node 1 of the cluster, a daemon at " + daemon->address() +
                              ", and this daemon do not accept each other"));
  EXPECT_THAT(said, HasSubstr("secret"));
  EXPECT_THAT(said, HasSubstr("status 2"));
  EXPECT_EQ(members(), 1u);
  const auto second = join({"--secret", file("one")});
  EXPECT_EQ(members(), 2u);
}

TEST_F(ClusterTrust, ADaemonThatIsGoneIsNoObstacle) {
  const auto gone = join({"--secret", file("one"), "--advertise", "127.0.0.1:1"});
  const auto daemon = join({"--secret", file("other")});
  EXPECT_EQ(members(), 2u);
}

TEST_F(ClusterApi, ARegistryThatIsAwayFailsTheStartWithItsServersWords) {
  const auto before = steady_clock::now();
  ASSERT_EQ(start({{"cluster", "etcd://127.0.0.1:1/demo"}}), VMEM_ERROR_TIMEOUT);
  EXPECT_THAT(vmem_last_error(), HasSubstr("the cluster was not joined within 10 s"));
  EXPECT_THAT(vmem_last_error(), HasSubstr("127.0.0.1:1"));
  EXPECT_LT(steady_clock::now() - before, std::chrono::seconds(15));
}

TEST_F(ClusterApi, ContradictoryOptionsAreRefused) {
  EXPECT_EQ(start({{"cluster", cluster()}, {"remote", "127.0.0.1:1"}}), VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(vmem_last_error(), HasSubstr("drop one of them"));
  EXPECT_EQ(start({{"cluster", "http://here"}}), VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(vmem_last_error(), HasSubstr("etcd://"));
}

}  // namespace
}  // namespace vmem
