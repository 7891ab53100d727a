// Clients, a bad network, a store that fails at times and a server that restarts, by seed. Checked
// against what the server's own records show after each of its answers:
//
// - No write is carried out twice; a write that ended in an error other than TIMEOUT never is; one
//   that was confirmed is, and is never lost.
// - What a reading shows is there, and nothing acknowledged before it is missing.
// - Revisions never go back; leases have one holder each, and last as long as was promised.
#include <fmt/format.h>

#include <optional>
#include <set>

#include "base/log.hpp"
#include "campaign/seeds.hpp"
#include "cluster/registry/registry_conformance.hpp"
#include "cluster/registry/served/served_world.hpp"

namespace vmem::cluster {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kUsualSeeds = 20;
#else
constexpr std::uint64_t kUsualSeeds = 150;
#endif
constexpr int kClients = 3;

// The fate of one unconditional put of a value of its own.
struct Put {
  std::string key;
  bool ended = false, confirmed = false, refused = false;
  int seen = 0;  // how often the record became this
};

struct Held {
  std::string key;             // of the record under it, once that was confirmed
  std::uint64_t until_us = 0;  // promised, by the daemon's clock
};

class ServedChaos {
 public:
  ServedChaos(std::uint64_t seed, bool keeps) : keeps_(keeps), random_(seed) {
    if (keeps) daemon_.store = &store_;
    // Looking makes the server write: other seeds do without, and may find what is not written.
    if (seed % 2 == 0) daemon_.answered = [this] { observe(); };
    weather_ = {.lost = std::uint32_t(random_() % 300),
                .doubled = std::uint32_t(random_() % 400),
                .late = std::uint32_t(random_() % 200),
                .usual_us = 1 + random_() % 50'000,
                .late_us = 1 + random_() % 6'000'000};
    daemon_.limits.each.lease_seconds = 60;
    daemon_.start();
    for (int i = 0; i < kClients; ++i) {
      channels_.push_back(std::make_unique<BadChannel>(daemon_, weather_, random_()));
      clients_.push_back(served_client(daemon_.clock, *channels_.back(), random_(), 4 * kSecondUs));
      waiting_.emplace_back();
    }
  }

  void play(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      act();
      pass();
    }
    store_.fails = false;
    if (!daemon_.server) restart();
    for (int i = 0; i < 2000 && !idle(); ++i) pass();
    EXPECT_TRUE(idle()) << "a request has no reply";
    check_end();
  }

  std::uint64_t confirmed() const { return count(&Put::confirmed); }
  std::uint64_t restarts() const { return restarts_; }
  std::uint64_t unknown() const { return unknown_; }

 private:
  struct Waiting {
    std::string value;  // of a put
    LeaseId lease{};    // of a renewal, or of the put
    std::uint64_t posted_us = 0;
    Revision shown{};                    // to any client, when this was posted
    std::set<std::string> acknowledged;  // of a reading: values that were confirmed before
  };

  std::uint64_t count(bool Put::* which) const {
    std::uint64_t sum = 0;
    for (const auto& [value, put] : puts_) sum += put.*which;
    return sum;
  }
  bool idle() const {
    return std::ranges::all_of(waiting_, [](const auto& each) { return each.empty(); });
  }
  std::size_t any_client() { return random_() % kClients; }

  void act() {
    const std::uint64_t kind = random_() % 100;
    if (kind < 30) return post_put({});
    if (kind < 40) return post(any_client(), ReadPrefix{""}, {.acknowledged = confirmed_now_});
    if (kind < 46) return post(any_client(), GrantLease{std::uint32_t(20 + random_() % 40)}, {});
    if (kind < 60 && !leases_.empty()) return renew(any_lease());
    if (kind < 66 && !leases_.empty()) return post_put(any_lease());
    if (kind == 66 && keeps_) store_.fails = !store_.fails;
    if (kind == 67) daemon_.server.reset();
    if (kind == 68 || kind == 69) restart();
  }
  LeaseId any_lease() { return std::next(leases_.begin(), std::ptrdiff_t(random_() % leases_.size()))->first; }

  void restart() {
    if (store_.fails) return;
    ++restarts_;
    if (!keeps_) {
      confirmed_now_.clear();
      leases_.clear();
      present_.clear();
    }
    daemon_.start();
  }

  void post(std::size_t client, RegistryRequest request, Waiting waiting) {
    waiting.posted_us = daemon_.clock.now_us();
    waiting.shown = shown_;
    const RequestId id = clients_[client]->post(std::move(request));
    waiting_[client].emplace(id, std::move(waiting));
  }
  void renew(LeaseId lease) { post(any_client(), RenewLease{lease}, {.lease = lease}); }
  // Now and then one that needs several messages.
  void post_put(LeaseId lease) {
    std::string value = fmt::format("{}:", ++last_value_);
    if (random_() % 16 == 0) value += std::string(random_() % 200'000, 'x');
    const std::string key = lease == LeaseId{} ? fmt::format("k{}", random_() % 4)
                                               : fmt::format("l{}/{}", std::int64_t(lease), value.substr(0, 9));
    puts_[value].key = key;
    post(any_client(), Commit{.conditions = {}, .edits = {put(key, value, lease)}}, {.value = value, .lease = lease});
  }

  void pass() {
    daemon_.clock.advance(random_() % 100'000);
    if (daemon_.server) daemon_.server->step();
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      std::vector<Reply> replies;
      clients_[i]->poll(replies);
      for (const Reply& reply : replies) take(i, reply);
    }
  }

  void observe() {
    if (!daemon_.server || store_.fails) return;
    const auto answered = std::exchange(daemon_.answered, nullptr);
    GoodChannel channel(daemon_);
    const auto reader = served_client(daemon_.clock, channel, 99);
    (void)reader->post(ReadPrefix{""});
    std::vector<Reply> replies;
    while (replies.empty()) reader->poll(replies);
    daemon_.answered = answered;
    const auto* const read = std::get_if<Read>(&replies[0].what);
    ASSERT_NE(read, nullptr);
    std::map<std::string, Record> present;
    for (const Record& each : read->records) {
      const auto before = present_.find(each.key);
      if (before == present_.end() || before->second.modified != each.modified) ++puts_[each.value].seen;
      present.emplace(each.key, each);
    }
    present_ = std::move(present);
    EXPECT_GE(replies[0].revision, revision_);
    revision_ = replies[0].revision;
    for (const auto& [lease, held] : leases_) {
      if (held.key.empty() || daemon_.clock.now_us() >= held.until_us) continue;
      EXPECT_TRUE(present_.contains(held.key)) << "lease " << std::int64_t(lease) << " has ended too early";
    }
  }

  void take(std::size_t client, const Reply& reply) {
    const auto found = waiting_[client].find(reply.request);
    ASSERT_NE(found, waiting_[client].end()) << "two replies";
    const Waiting waiting = std::move(found->second);
    waiting_[client].erase(found);
    const auto* const error = std::get_if<Error>(&reply.what);
    if (error != nullptr && error->status == VMEM_ERROR_TIMEOUT) ++unknown_;
    if (!waiting.value.empty()) take_put(waiting, reply);
    check_revision(waiting, reply);
    if (const auto* granted = std::get_if<Granted>(&reply.what)) {
      EXPECT_TRUE(granted_.insert(granted->lease).second) << "a lease was granted twice";
      promise(granted->lease, waiting.posted_us, granted->seconds);
    }
    if (const auto* renewed = std::get_if<Renewed>(&reply.what); renewed != nullptr && renewed->seconds != 0)
      promise(waiting.lease, waiting.posted_us, renewed->seconds);
    if (const auto* read = std::get_if<Read>(&reply.what)) check_reading(waiting, reply.revision, *read);
  }

  void check_revision(const Waiting& waiting, const Reply& reply) {
    if (reply.revision == Revision{} || std::holds_alternative<Renewed>(reply.what)) return;
    EXPECT_GE(reply.revision, waiting.shown) << "the registry went back";
    shown_ = std::max(shown_, reply.revision);
  }

  void promise(LeaseId lease, std::uint64_t posted_us, std::uint32_t seconds) {
    if (!keeps_ && std::int64_t(lease) < std::int64_t(daemon_.server ? daemon_.server->incarnation() : 0)) return;
    Held& held = leases_[lease];
    held.until_us = std::max(held.until_us, posted_us + seconds * kSecondUs);
  }

  void take_put(const Waiting& waiting, const Reply& reply) {
    Put& put = puts_[waiting.value];
    put.ended = true;
    const auto* const error = std::get_if<Error>(&reply.what);
    put.refused = error != nullptr && error->status != VMEM_ERROR_TIMEOUT;
    put.confirmed = std::holds_alternative<Committed>(reply.what);
    if (!put.confirmed) return;
    const bool of_this_run = keeps_ || (daemon_.server && reply.revision >= Revision(daemon_.server->incarnation()));
    if (!of_this_run) return;
    if (waiting.lease == LeaseId{})
      confirmed_now_.insert(waiting.value);
    else if (leases_.contains(waiting.lease))
      leases_[waiting.lease].key = put.key;
    confirmed_at_[waiting.value] = reply.revision;
  }

  void check_reading(const Waiting& waiting, Revision revision, const Read& read) {
    std::map<std::string, Revision> keys;
    for (const Record& each : read.records) {
      EXPECT_TRUE(puts_.contains(each.value)) << "a reading has what nobody wrote";
      EXPECT_FALSE(puts_[each.value].refused);
      EXPECT_LE(each.modified, revision);
      keys[each.key] = each.modified;
    }
    if (!keeps_) return;  // a restart may lie between
    for (const std::string& value : waiting.acknowledged)
      EXPECT_GE(keys[puts_[value].key], confirmed_at_[value]) << "a reading misses what was acknowledged before";
  }

  void check_end() {
    observe();
    for (const auto& [value, put] : puts_) {
      EXPECT_LE(put.seen, 1) << put.key << " became " << value.substr(0, 12) << " more than once";
      EXPECT_FALSE(put.refused && put.seen != 0) << "an error, and it was carried out";
    }
  }

  const bool keeps_;
  std::mt19937_64 random_;
  Weather weather_;
  MemoryStore store_;
  ServedDaemon daemon_;
  std::vector<std::unique_ptr<BadChannel>> channels_;
  std::vector<std::unique_ptr<ServedRegistry>> clients_;
  std::vector<std::map<RequestId, Waiting>> waiting_;

  std::map<std::string, Put> puts_;  // by value
  std::set<std::string> confirmed_now_;
  std::map<std::string, Revision> confirmed_at_;
  std::map<LeaseId, Held> leases_;
  std::set<LeaseId> granted_;
  std::map<std::string, Record> present_;
  Revision revision_{}, shown_{};
  std::uint64_t last_value_ = 0, restarts_ = 0, unknown_ = 0;
};

class ServedChaosTest : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Shards, ServedChaosTest, ::testing::Range<std::uint64_t>(0, test::kShards));

void play_seeds(std::uint64_t shard, bool keeps) {
  log::set_level(log::Level::error);
  std::uint64_t count = 0, confirmed = 0, restarts = 0, unknown = 0;
  test::run_seeds(shard, kUsualSeeds, [&](std::uint64_t seed) {
    ServedChaos chaos(seed, keeps);
    chaos.play(400);
    ++count;
    confirmed += chaos.confirmed();
    restarts += chaos.restarts();
    unknown += chaos.unknown();
  });
  fmt::print("{} writes confirmed, {} restarts, {} requests without an answer\n", confirmed, restarts, unknown);
  if (count < 10) return;
  EXPECT_GT(confirmed, 20 * count);
  EXPECT_GT(restarts, 2 * count);
  EXPECT_GT(unknown, count);
}

TEST_P(ServedChaosTest, WithAStore) { play_seeds(GetParam(), true); }
TEST_P(ServedChaosTest, WithoutAStore) { play_seeds(GetParam(), false); }

}  // namespace
}  // namespace vmem::cluster
