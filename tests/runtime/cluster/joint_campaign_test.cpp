// Clusters whose programs publish, open, read, close and remove regions while hosts die, stop and
// come back, messages are lost, doubled and late, ways are cut, memory fails and the registry is
// away, by seed (campaign/seeds.hpp). What must hold is said in joint_world.hpp, and is checked all
// the time.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "base/log.hpp"
#include "campaign/seeds.hpp"
#include "cluster/simulator/chaos.hpp"
#include "runtime/cluster/simulator/joint_world.hpp"

namespace vmem::runtime::simulator {
namespace {

using Serial = cluster::directory::Serial;

// Sanitizers make a seed up to sixty times as slow.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kUsualSeeds = 8;
#else
constexpr std::uint64_t kUsualSeeds = 64;
#endif

class JointChaos final : public cluster::simulator::Chaos<JointWorld> {
 public:
  JointChaos(std::uint64_t seed, const JointShape& shape) : Chaos(seed, 5, shape, {.leases = 6, .acts = 15}) {
    for (const auto& host : world.hosts()) host->start();
    world.run_for(3'000'000);
    harm();
  }

 private:
  std::uint32_t page() { return std::uint32_t(random_() % world.pages()); }
  std::uint32_t any_host() { return std::uint32_t(random_() % world.hosts().size()); }

  void act() override {
    const std::uint32_t host = any_host();
    JointHost& at = *world.hosts()[host];
    const std::uint64_t kind = random_() % 64;
    if (!at.running()) return at.start();
    if (kind == 0 && random_() % 2) return at.crash(random_() % 2 ? JointHost::Death::seen : JointHost::Death::unseen);
    if (kind == 1) return stop(at);
    if (kind < 4) return cut(host);
    if (kind == 4) return harm();
    if (kind == 5) return break_registry_of(at);
    if (kind == 6) return lose_requests(200);
    if (kind == 7) return drain(at.id());
    if (!at.acts()) return;
    if (kind == 8 && random_() % 3 == 0) return at.leave(wait_us());
    if (!at.is_daemon()) use(host, at, kind);
  }

  void use(std::uint32_t host, JointHost& at, std::uint64_t kind) {
    const std::vector<Serial> open = world.open_at(host);
    if (kind < 15) return publish(host);
    if (kind < 25) return at.open(name(), wait_us());
    if (kind == 25) return at.remove(name(), wait_us());
    if (open.empty()) return;
    const Serial serial = open[random_() % open.size()];
    if (kind == 26 || kind == 27) return at.close(serial, wait_us());
    if (kind == 28) {
      for (int i = 0; i < 4; ++i) at.lose(serial, page());
    } else if (kind < 36) {
      for (int i = 0; i < 4; ++i) at.pages().evict(serial, page());
    } else {
      for (int i = 0; i < 6; ++i) at.pages().read(serial, page());
    }
  }

  // One way, to one host or to all.
  void cut(std::uint32_t from) {
    const bool all = random_() % 3 == 0;
    const std::uint32_t one = any_host();
    for (std::uint32_t to = 0; to < world.hosts().size(); ++to) {
      if (to == from || (!all && to != one)) continue;
      world.set_cut(from, to, true);
      world.queue().after(time_us(), [this, from, to] { world.set_cut(from, to, false); });
    }
  }

  // Messages and memory fail from now on as often as this says.
  void harm() {
    world.set_faults({});
    world.memory_faults = {};
    if (random_() % 2)
      world.set_faults({.drop = 0.03,
                        .duplicate = 0.1,
                        .delay = 0.2,
                        .cut_out = 0.003,
                        .cut_in = 0.003,
                        .delay_us = 1'000 + random_() % 3'000'000});
    if (random_() % 2) world.memory_faults = {.damaged = std::uint32_t(random_() % 200), .busy = 100};
  }

  // For all, or for one node's directory.
  void break_registry_of(JointHost& at) {
    if (random_() % 2) return break_registry();
    at.process().link().away = true;
    world.queue().after(time_us(), [&at] {
      if (at.running()) at.process().link().away = false;
    });
  }
};

JointShape shape_of(std::uint64_t seed) {
  JointShape shape;
  shape.daemons = std::uint32_t(2 + seed % 3);
  shape.programs = 6 - shape.daemons;
  return shape;
}

void show(const JointWorld::Counts& sum) {
  const JointHost::Counts& hosts = sum.hosts;
  fmt::print(
      "{} published, {} incomplete, {} refused, {} opened, {} not, {} closed, {} removed, {} left, {} expelled, {} "
      "pages read, {} LOST, {} not in time, {} reused, {} damaged, {} retries, {} pages lost by homes, {} ranges "
      "freed, {} takeovers\n",
      hosts.published, hosts.incomplete, hosts.refused, hosts.opened, hosts.unopened, hosts.closed, hosts.removed,
      hosts.left, hosts.expelled, hosts.read, hosts.lost, hosts.failed, hosts.reused, hosts.mismatches, hosts.retries,
      sum.lost, sum.freed, sum.takeovers);
}

void expect_at_least(const JointWorld::Counts& sum, std::uint64_t times) {
  const JointHost::Counts& hosts = sum.hosts;
  for (const std::uint64_t each : {hosts.published, hosts.refused, hosts.opened, hosts.unopened, hosts.closed,
                                   hosts.read, hosts.retries, sum.lost, sum.freed, sum.takeovers})
    EXPECT_GE(each, times) << "this shows nothing";
  for (const std::uint64_t each : {hosts.incomplete, hosts.removed, hosts.left, hosts.expelled, hosts.lost,
                                   hosts.failed, hosts.reused, hosts.mismatches})
    EXPECT_GE(each, 1u) << "this shows nothing";
}

class JointCampaign : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Shards, JointCampaign, ::testing::Range<std::uint64_t>(0, test::kShards));

TEST_P(JointCampaign, HoldsUnderRandomFaults) {
  log::set_level(log::Level::off);
  JointWorld::Counts sum;
  std::uint64_t count = 0;
  const auto play = [&](std::uint64_t seed) {
    JointChaos chaos(seed, shape_of(seed));
    chaos.play(1);
    ++count;
    sum += chaos.world.counts();
    EXPECT_EQ(chaos.world.wrong(), "");
  };
  test::run_seeds(GetParam(), kUsualSeeds, play, "VMEM_TEST_JOINT_SEEDS");
  show(sum);
  if (count >= 20) expect_at_least(sum, count / 10);
}

TEST(JointCampaignSeeds, TheSameSeedIsTheSameRun) {
  log::set_level(log::Level::off);
  const auto digest = [](std::uint64_t seed) {
    JointChaos chaos(seed, shape_of(seed));
    chaos.play(1);
    return chaos.world.digest();
  };
  const std::string first = digest(3);
  EXPECT_EQ(digest(3), first);
  EXPECT_NE(digest(4), first);
}

}  // namespace
}  // namespace vmem::runtime::simulator
