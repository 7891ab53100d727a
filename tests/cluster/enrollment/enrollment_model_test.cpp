// Clusters under random faults and requests, by seed (campaign/seeds.hpp). What must hold is said
// in enrollment_world.hpp, and is checked at each event.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/log.hpp"
#include "campaign/seeds.hpp"
#include "cluster/simulator/chaos.hpp"
#include "cluster/simulator/enrollment_world.hpp"

namespace vmem::cluster::simulator {
namespace {

// Sanitizers make a seed up to sixty times as slow.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kUsualSeeds = 24;
#else
constexpr std::uint64_t kUsualSeeds = 200;
#endif

class EnrollmentChaos final : public Chaos<EnrollmentWorld> {
 public:
  EnrollmentChaos(std::uint64_t seed, const WorldShape& shape) : Chaos(seed, 3, shape, {.leases = 10, .acts = 6}) {}

 private:
  EnrolledHost& host() { return *world.hosts()[random_() % world.hosts().size()]; }

  void act() override {
    const std::uint64_t kind = random_() % 32;
    EnrolledHost& any = host();
    if (kind < 3) return any.start();
    if (kind == 3) return any.crash();
    if (kind == 4) return break_registry();
    if (kind == 5) return lose_requests(300);
    if (kind == 6) return world.gossip(Address(random_() % world.hosts().size()));
    if (kind == 7) return put_damaged();
    if (kind == 8) return clean_up();
    if (any.running() && !any.stopped()) act_on(any, kind);
  }

  void act_on(EnrolledHost& any, std::uint64_t kind) {
    Enrollment& enrollment = any.enrollment();
    if (kind < 11)
      stop(any);
    else if (kind < 13)
      cut(any);
    else if (kind == 13)
      leave(enrollment);
    else if (kind < 17)
      any.waits_for(enrollment.take_serial());
    else if (kind < 22)
      any.take_slices(std::uint32_t(1 + random_() % 3));
    else if (kind < 26)
      release(enrollment);
    else if (kind < 29)
      take_over(any);
    else if (kind == 29)
      drain(enrollment.id());
    else
      change(any);
    any.wake();
  }

  void cut(EnrolledHost& any) {
    any.link().away = true;
    world.queue().after(time_us(), [&any] {
      if (any.running()) any.link().away = false;
    });
  }

  void leave(Enrollment& enrollment) {
    std::vector<Slice> empty;
    for (const Slice slice : enrollment.slices())
      if (random_() % 2) empty.push_back(slice);
    enrollment.leave(empty);
  }

  void release(Enrollment& enrollment) {
    const std::set<Slice> held = enrollment.slices();
    for (const Slice slice : held)
      if (random_() % 2 && !enrollment.release_slice(slice)) ADD_FAILURE() << "it is held, and is refused";
  }

  // Its own former slices, and any other, of dead and of live nodes.
  void take_over(EnrolledHost& any) {
    std::map<Slice, NodeId> choice = any.former();
    for (const auto& [key, record] : world.registry().records()) {
      if (!key.starts_with(kSlicesPrefix)) continue;
      for (std::uint64_t id = 1; id < 100; ++id)
        if (record.value == slice_value(NodeId{id}))
          choice.emplace(Slice(std::stoul(key.substr(kSlicesPrefix.size()))), NodeId{id});
    }
    if (choice.empty()) return;
    const auto chosen = std::next(choice.begin(), std::ptrdiff_t(random_() % choice.size()));
    any.waits_for(any.enrollment().take_over_slice(chosen->first, chosen->second));
  }

  // Often several times, and back to what was there.
  void change(EnrolledHost& any) {
    for (std::uint64_t times = 1 + random_() % 3; times != 0; --times) any.change_record(random_() % 4);
  }

  // Records that no node can read, of an id that nobody gets.
  void put_damaged() {
    const std::string key = random_() % 2 ? "nodes/x" : "nodes/999999999";
    Edit edit{.key = key, .value = "{\"format\":", .lease = {}};
    if (random_() % 2) edit.value.reset();
    world.registry().apply(Commit{.conditions = {}, .edits = {edit}});
  }

  // As daemons do that know that a process has ended.
  void clean_up() {
    std::set<std::string> live;
    for (const auto& each : world.hosts())
      if (each->running()) live.insert(node_key(each->enrollment().id()));
    std::vector<Edit> edits;
    for (const auto& [key, record] : world.registry().records())
      for (const auto& each : world.hosts())
        if (!each->running() && key.starts_with(kNodesPrefix) && !live.contains(key) &&
            record.value.find(each->name() + ":") != std::string::npos)
          edits.push_back({.key = key, .value = std::nullopt, .lease = {}});
    if (!edits.empty()) world.registry().apply(Commit{.conditions = {}, .edits = edits});
  }
};

WorldShape shape_of(std::uint64_t seed) {
  WorldShape shape;
  shape.hosts = std::uint32_t(2 + seed % 5);
  shape.slices = std::uint32_t(4 + seed % 7);
  if (seed % 9 == 0) shape = {.hosts = 3, .slices = 6, .lease_s = 90, .registry_timeout_us = 4'000'000};
  return shape;
}

void show(const EnrollmentWorld::Counts& sum) {
  fmt::print(
      "{} enrolled, {} fenced, {} fences ended, {} expelled, {} left, {} serials, {} slices, {} timeouts, {} "
      "seen to go, {} rows, {} changes\n",
      sum.enrolled, sum.fenced, sum.fences_ended, sum.expelled, sum.left, sum.serials, sum.slices, sum.timeouts,
      sum.gone, sum.rows, sum.changes);
}

void expect_at_least(const EnrollmentWorld::Counts& sum, std::uint64_t times) {
  for (const std::uint64_t each : {sum.enrolled, sum.expelled, sum.fenced, sum.fences_ended, sum.left, sum.serials,
                                   sum.slices, sum.timeouts, sum.gone, sum.rows, sum.changes})
    EXPECT_GE(each, times) << "this shows nothing";
}

class EnrollmentModel : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Shards, EnrollmentModel, ::testing::Range<std::uint64_t>(0, test::kShards));

TEST_P(EnrollmentModel, HoldsUnderRandomFaults) {
  log::set_level(log::Level::error);  // damaged records are many here
  EnrollmentWorld::Counts sum;
  std::uint64_t count = 0;
  test::run_seeds(GetParam(), kUsualSeeds, [&](std::uint64_t seed) {
    EnrollmentChaos chaos(seed, shape_of(seed));
    chaos.play(2);
    ++count;
    sum += chaos.world.counts();
    EXPECT_EQ(chaos.world.wrong(), "");
  });
  show(sum);
  if (count >= 20) expect_at_least(sum, count / 10);
}

}  // namespace
}  // namespace vmem::cluster::simulator
