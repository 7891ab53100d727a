// Enrollment in a registry that one node keeps, in virtual time and by seed: messages are lost,
// copied and delayed, clocks drift, nodes crash and stop, and the server restarts, with what it had
// kept or with nothing. At each moment:
//
// - No two live unfenced processes have one id, or hold one slice.
// - Serials, and ids among them, are given out once.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <set>

#include "base/log.hpp"
#include "campaign/drifting_clock.hpp"
#include "campaign/seeds.hpp"
#include "cluster/enrollment/enrollment.hpp"
#include "cluster/enrollment/serial_counter.hpp"
#include "cluster/registry/served/served_world.hpp"
#include "cluster/simulator/simulated_network.hpp"

namespace vmem::cluster::simulator {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kUsualSeeds = 16;
#else
constexpr std::uint64_t kUsualSeeds = 80;
#endif
constexpr std::uint32_t kLeaseSeconds = 6;
constexpr std::uint64_t kTickUs = 20'000;
constexpr Address kServer = 1000;
constexpr std::uint64_t kDayUs = 1'800'000'000 * kSecondUs;  // the time of day at the begin

class NetworkChannel final : public RequestChannel {
 public:
  NetworkChannel(SimulatedNetwork& network, Address self) : network_(network), self_(self) {
    network.attach(self, [this](Address, const std::string& answer) { answers_.push_back(answer); });
  }
  ~NetworkChannel() override { network_.detach(self_); }
  NetworkChannel(const NetworkChannel&) = delete;
  NetworkChannel& operator=(const NetworkChannel&) = delete;
  void send(std::string message) override { network_.send(self_, kServer, std::move(message)); }
  void receive(std::vector<std::string>& answers) override {
    std::ranges::move(answers_, std::back_inserter(answers));
    answers_.clear();
  }

 private:
  SimulatedNetwork& network_;
  const Address self_;
  std::vector<std::string> answers_;
};

std::int64_t any_drift(std::mt19937_64& random) { return std::int64_t(random() % 20'001) - 10'000; }

Enrollment::Setup enrollment_setup(Address host, std::uint64_t run) {
  return {.parameters = {.base = 1ull << 44,
                         .space_bytes = 5ull << 36,
                         .slice_bytes = 1ull << 36,
                         .granule_bytes = 2u << 20,
                         .page_rule = "test"},
          .self = {.incarnation = Incarnation{run},
                   .addresses = {fmt::format("h{}:7000", host)},
                   .boot = "boot",
                   .pid = run,
                   .kind = "program",
                   .labels = {{"host", fmt::format("h{}", host)}},
                   .lends = {},
                   .token = {}},
          .config = EnrollmentConfig::of_lease(kLeaseSeconds),
          .random = [random = std::make_shared<std::mt19937_64>(run * 1000 + host)] { return (*random)(); }};
}

struct Process {
  Process(SimulatedNetwork& network, const Clock& clock, Address host, std::uint64_t run)
      : channel(network, host),
        registry(served_client(clock, channel, run * 100 + host, 2 * kSecondUs)),
        enrollment(*registry, clock, enrollment_setup(host, run)) {}
  NetworkChannel channel;
  std::unique_ptr<ServedRegistry> registry;
  Enrollment enrollment;
  bool stopped = false;
};

struct Counts {
  std::uint64_t enrolled = 0, expelled = 0, fenced = 0, slices = 0, serials = 0, restarts = 0;
};

class ServedEnrollmentWorld {
 public:
  ServedEnrollmentWorld(std::uint64_t seed, bool keeps)
      : random_(seed), network_(queue_, seed + 1), keeps_(keeps), daemon_clock_(queue_, any_drift(random_)) {
    for (Address host = 0; host < 4; ++host) {
      clocks_.push_back(std::make_unique<test::DriftingClock>(queue_, any_drift(random_), 1 + random_() % 1'000'000));
      processes_.emplace_back();
    }
    network_.usual() = weather();
    network_.attach(kServer, [this](Address from, const std::string& question) {
      if (!server_) return;
      if (std::string answer = server_->answer("key", question); !answer.empty())
        network_.send(kServer, from, std::move(answer));
    });
    start_server(RegistryServer::Before::nothing);
  }

  void play() {
    for (int i = 0; i < 150 && ok(); ++i) {
      act();
      run_for(random_() % (2 * kSecondUs));
    }
    recover();
  }
  const Counts& counts() const noexcept { return counts_; }

 private:
  static bool ok() { return !::testing::Test::HasFailure(); }
  LinkQuality weather() {
    return {.least_us = 10,
            .most_us = 100 + random_() % (random_() % 4 == 0 ? 3 * kSecondUs : 50'000),
            .lost = std::uint32_t(random_() % 200),
            .doubled = std::uint32_t(random_() % 300)};
  }

  void start_server(RegistryServer::Before before) {
    ServedLimits limits;
    limits.each.lease_seconds = kLeaseSeconds;
    server_.reset();
    auto created = RegistryServer::create(
        daemon_clock_, {.store = keeps_ ? &store_ : nullptr,
                        .started_us = kDayUs + queue_.now_us(),
                        .before = before,
                        .limits = limits,
                        .first_records = [](std::uint64_t number) { return std::vector{first_counter(number)}; }});
    ASSERT_TRUE(created) << created.error().message;
    server_ = *std::move(created);
  }
  // Often beside a node that learns late of it, while the others take what it holds.
  void restart_server() {
    ++counts_.restarts;
    if (auto& any = processes_[random_() % processes_.size()]; any && random_() % 2 == 0) {
      any->stopped = true;
      for (const auto& each : processes_)
        if (each && each != any) (void)each->enrollment.take_slices(2);
    }
    start_server(RegistryServer::Before::perhaps_a_server);
  }

  void act() {
    const std::uint64_t kind = random_() % 40;
    std::unique_ptr<Process>& any = processes_[random_() % processes_.size()];
    if (kind < 6) return start(Address(&any - processes_.data()));
    if (kind == 6) return any.reset();
    if (kind == 7) return server_.reset();
    if (kind == 8 || (kind == 9 && !server_)) return restart_server();
    if (kind == 10) return cut(Address(&any - processes_.data()));
    if (!any) return;
    if (kind < 13)
      any->stopped = true;
    else if (kind < 20)
      any->stopped = false;
    else if (kind < 28)
      (void)any->enrollment.take_slices(1 + std::uint32_t(random_() % 2));
    else if (kind < 34)
      (void)any->enrollment.take_serial();
    else if (!any->enrollment.slices().empty() && !any->enrollment.release_slice(*any->enrollment.slices().begin()))
      ADD_FAILURE() << "it is held, and is refused";
  }
  void start(Address host) {
    if (!processes_[host]) processes_[host] = std::make_unique<Process>(network_, *clocks_[host], host, ++runs_);
  }
  // One way, or both.
  void cut(Address host) {
    const bool there = random_() % 2 == 0, back = !there || random_() % 2 == 0;
    network_.link(host, kServer).cut = there;
    network_.link(kServer, host).cut = back;
    queue_.after(random_() % (3 * kLeaseSeconds * kSecondUs), [this, host] { mend(host); });
  }
  void mend(Address host) { network_.link(host, kServer).cut = network_.link(kServer, host).cut = false; }

  void run_for(std::uint64_t us) {
    const std::uint64_t end_us = queue_.now_us() + us;
    while (queue_.now_us() < end_us && ok()) {
      queue_.run_until(std::min(queue_.now_us() + kTickUs, end_us));
      if (server_) server_->step();
      for (const auto& process : processes_)
        if (process && !process->stopped) step(*process);
      check();
    }
  }
  void step(Process& process) {
    while (process.enrollment.step()) continue;
    std::vector<EnrollmentEvent> events;
    process.enrollment.poll(events);
    for (const EnrollmentEvent& event : events) saw(event);
  }
  void saw(const EnrollmentEvent& event) {
    if (const auto* enrolled = std::get_if<Enrolled>(&event)) {
      ++counts_.enrolled;
      once(static_cast<std::uint64_t>(enrolled->self));
    } else if (const auto* serial = std::get_if<SerialTaken>(&event); serial != nullptr && serial->serial) {
      ++counts_.serials;
      once(*serial->serial);
    } else if (const auto* slices = std::get_if<SlicesTaken>(&event); slices != nullptr && slices->slices) {
      counts_.slices += slices->slices->size();
    } else if (const auto* refused = std::get_if<Refused>(&event)) {
      ADD_FAILURE() << "refused: " << refused->why.message;
    }
    counts_.expelled += std::holds_alternative<Expelled>(event);
    counts_.fenced += std::holds_alternative<Fenced>(event);
  }
  void once(std::uint64_t serial) { EXPECT_TRUE(serials_.insert(serial).second) << serial << " was given out twice"; }

  void check() {
    std::set<NodeId> ids;
    std::set<Slice> slices;
    for (const auto& process : processes_) {
      if (!process || process->enrollment.fenced()) continue;
      EXPECT_TRUE(ids.insert(process->enrollment.id()).second) << "two live nodes have one id";
      for (const Slice slice : process->enrollment.slices())
        EXPECT_TRUE(slices.insert(slice).second) << "two live nodes hold slice " << std::uint32_t(slice);
    }
  }

  void recover() {
    if (!server_) restart_server();
    for (Address host = 0; host < processes_.size(); ++host) {
      network_.link(host, kServer) = network_.link(kServer, host) = LinkQuality{};
      start(host);
      processes_[host]->stopped = false;
    }
    run_for(60 * kSecondUs);
    for (const auto& process : processes_)
      EXPECT_TRUE(process->enrollment.id() != NodeId{} && !process->enrollment.fenced()) << "not enrolled at the end";
  }

  std::mt19937_64 random_;
  EventQueue queue_;
  SimulatedNetwork network_;
  const bool keeps_;
  test::DriftingClock daemon_clock_;
  MemoryStore store_;
  std::unique_ptr<RegistryServer> server_;
  std::vector<std::unique_ptr<test::DriftingClock>> clocks_;
  std::vector<std::unique_ptr<Process>> processes_;  // by host
  std::uint64_t runs_ = 0;
  std::set<std::uint64_t> serials_;
  Counts counts_;
};

class ServedEnrollment : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Shards, ServedEnrollment, ::testing::Range<std::uint64_t>(0, test::kShards));

void play_seeds(std::uint64_t shard, bool keeps) {
  log::set_level(log::Level::error);
  Counts sum;
  std::uint64_t count = 0;
  test::run_seeds(shard, kUsualSeeds, [&](std::uint64_t seed) {
    ServedEnrollmentWorld world(seed, keeps);
    world.play();
    ++count;
    for (std::uint64_t Counts::* const each :
         {&Counts::enrolled, &Counts::expelled, &Counts::fenced, &Counts::slices, &Counts::serials, &Counts::restarts})
      sum.*each += world.counts().*each;
  });
  fmt::print("{} enrolled, {} expelled, {} fenced, {} slices, {} serials, {} restarts\n", sum.enrolled, sum.expelled,
             sum.fenced, sum.slices, sum.serials, sum.restarts);
  if (count < 10) return;
  for (const std::uint64_t each : {sum.enrolled, sum.expelled, sum.fenced, sum.slices, sum.serials, sum.restarts})
    EXPECT_GE(each, count) << "this shows nothing";
}

TEST_P(ServedEnrollment, HoldsIfTheServerKeepsItsRecords) { play_seeds(GetParam(), true); }
TEST_P(ServedEnrollment, HoldsIfTheServerLosesItsRecords) { play_seeds(GetParam(), false); }

}  // namespace
}  // namespace vmem::cluster::simulator
