// Clusters that publish, open, read and lose regions under random faults, by seed
// (campaign/seeds.hpp). What must hold is said in directory_world.hpp, and is checked all the time.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "base/log.hpp"
#include "campaign/seeds.hpp"
#include "cluster/simulator/chaos.hpp"
#include "cluster/simulator/directory_world.hpp"

namespace vmem::cluster::simulator {
namespace {

// Sanitizers make a seed up to sixty times as slow.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kUsualSeeds = 16;
#else
constexpr std::uint64_t kUsualSeeds = 320;
#endif

class DirectoryChaos final : public Chaos<DirectoryWorld> {
 public:
  DirectoryChaos(std::uint64_t seed, const DirectoryShape& shape) : Chaos(seed, 5, shape, {.leases = 6, .acts = 15}) {
    if (random_() % 2) world.network().usual() = {.least_us = 50, .most_us = 20'000, .lost = 30, .doubled = 50};
    for (const auto& host : world.hosts()) host->start();
    world.run_for(3'000'000);
  }

 private:
  void act() override {
    const auto host = std::uint32_t(random_() % world.hosts().size());
    DirectoryHost& at = *world.hosts()[host];
    const std::uint64_t kind = random_() % 64;
    if (!at.running()) return at.start();
    if (kind == 0 && random_() % 2) return at.crash();
    if (kind == 1) return stop(at);
    if (kind < 4) return cut(host);
    if (kind == 4) return delay(host);
    if (kind == 5) return break_registry();
    if (kind == 6) return lose_requests(200);
    if (kind == 7) return drain(at.id());
    if (at.acts()) use(host, at, kind);
  }

  void use(std::uint32_t host, DirectoryHost& at, std::uint64_t kind) {
    const std::vector<directory::Serial> open = world.open_at(host);
    if (kind < 14) return publish(host);
    if (kind < 22) return world.open(host, name(), wait_us());
    if (kind == 22) return world.remove(host, name(), wait_us());
    if (kind == 23 && random_() % 3 == 0) return world.leave(host, wait_us());
    if (open.empty()) return;
    const directory::Serial serial = open[random_() % open.size()];
    if (kind == 24 || kind == 25) return world.close(host, serial, wait_us());
    if (kind == 26) {
      for (int i = 0; i < 4; ++i) at.lose(serial, std::uint32_t(random_() % 16));
    } else if (kind < 36) {
      for (int i = 0; i < 4; ++i) at.evict(serial, std::uint32_t(random_() % 16));
    } else {
      for (int i = 0; i < 6; ++i) at.read(serial, std::uint32_t(random_() % 16), wait_us());
    }
  }

  // One way, to one host or to all.
  void cut(std::uint32_t from) {
    const bool all = random_() % 3 == 0;
    const auto one = Address(random_() % world.hosts().size());
    for (Address to = 0; to < world.hosts().size(); ++to) {
      if (to == from || (!all && to != one)) continue;
      world.network().link(from, to).cut = true;
      world.queue().after(time_us(), [this, from, to] { world.network().link(from, to).cut = false; });
    }
  }

  void delay(std::uint32_t from) {
    for (Address to = 0; to < world.hosts().size(); ++to)
      world.network().link(from, to).most_us = 1'000 + random_() % 3'000'000;
  }
};

DirectoryShape shape_of(std::uint64_t seed) {
  DirectoryShape shape;
  shape.daemons = std::uint32_t(2 + seed % 4);
  shape.programs = 8 - shape.daemons;
  shape.stranger = seed % 3 == 0;
  return shape;
}

void show(const DirectoryWorld::Counts& sum) {
  fmt::print(
      "{} published, {} incomplete, {} refused, {} opened, {} wants answered, {} not, {} keeps asked for, {} releases, "
      "{} pages lost, {} removals, {} ranges freed, {} closed, {} left, {} takeovers, {} pages read, {} late bytes "
      "refused\n",
      sum.published, sum.incomplete, sum.refused, sum.opened, sum.wants, sum.timeouts, sum.kept, sum.released, sum.lost,
      sum.removed, sum.freed, sum.closed, sum.left, sum.takeovers, sum.read, sum.refused_bytes);
}

void expect_at_least(const DirectoryWorld::Counts& sum, std::uint64_t times) {
  for (const std::uint64_t each :
       {sum.published, sum.incomplete, sum.refused, sum.opened, sum.wants, sum.timeouts, sum.kept, sum.lost,
        sum.removed, sum.freed, sum.closed, sum.left, sum.takeovers, sum.read})
    EXPECT_GE(each, times) << "this shows nothing";
  EXPECT_GE(sum.released, 1u) << "only daemons and publishers keep pages, so there are few";
}

class DirectoryModel : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Shards, DirectoryModel, ::testing::Range<std::uint64_t>(0, test::kShards));

TEST_P(DirectoryModel, HoldsUnderRandomFaults) {
  log::set_level(log::Level::error);
  DirectoryWorld::Counts sum;
  std::uint64_t count = 0;
  const auto play = [&](std::uint64_t seed) {
    DirectoryChaos chaos(seed, shape_of(seed));
    chaos.play(1);
    ++count;
    sum += chaos.world.counts();
    EXPECT_EQ(chaos.world.wrong(), "");
  };
  test::run_seeds(GetParam(), kUsualSeeds, play, "VMEM_TEST_DIRECTORY_SEEDS");
  show(sum);
  if (count >= 20) expect_at_least(sum, count / 10);
}

}  // namespace
}  // namespace vmem::cluster::simulator
