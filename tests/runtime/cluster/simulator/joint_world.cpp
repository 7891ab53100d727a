#include "runtime/cluster/simulator/joint_world.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace vmem::runtime::simulator {

using namespace cluster::directory;  // NOLINT(google-build-using-namespace): its regions
using cluster::simulator::EnrolledHost;

namespace {

constexpr std::uint64_t kCheckUs = 50'000;
constexpr std::uint64_t kLatencyUs = 200;
// Between turns.
constexpr std::uint64_t kLeastPassUs = 200, kMostPassUs = 50'000;
// Calls that wait end, leave() too.
constexpr std::uint64_t kCallUs = 10'000'000;
// Connections that are silent end.
constexpr std::uint64_t kRecoveryUs = 85'000'000;
constexpr std::uint64_t kReadUs = 25'000'000;
// Then each copy that a home has counted is still there.
constexpr std::uint64_t kCalmUs = 10'000'000;

std::uint64_t number(Serial serial) { return static_cast<std::uint64_t>(serial); }

std::int64_t drift_of(std::mt19937_64& random, std::int64_t most_ppm) {
  return std::int64_t(random() % std::uint64_t(2 * most_ppm + 1)) - most_ppm;
}

}  // namespace

JointWorld::Counts& JointWorld::Counts::operator+=(const Counts& other) {
  hosts += other.hosts;
  lost += other.lost;
  freed += other.freed;
  takeovers += other.takeovers;
  return *this;
}

JointWorld::JointWorld(std::uint64_t seed, const JointShape& shape)
    : shape_(shape),
      random_(seed),
      registry_(queue_, drift_of(random_, shape.most_drift_ppm)),
      checks_(registry_, shape.pages) {
  fabric_.set_latency(kLatencyUs);
  for (std::uint32_t i = 0; i < shape.daemons + shape.programs; ++i) {
    hosts_.push_back(std::make_unique<JointHost>(registry_, fmt::format("h{}", i), random_(), host_setup(i)));
    checks_.watch(*hosts_.back());
  }
}

JointHost::Setup JointWorld::host_setup(std::uint32_t host) {
  EnrolledHost::Setup enrolled{.drift_ppm = drift_of(random_, shape_.most_drift_ppm),
                               .clock_began_us = 1 + random_() % 1'000'000'000'000};
  enrolled.config = cluster::EnrollmentConfig::of_lease(shape_.lease_s);
  enrolled.parameters = {.base = 1ull << 44,
                         .space_bytes = 8 * (1ull << 36),
                         .slice_bytes = 1ull << 36,
                         .granule_bytes = 2u << 20,
                         .page_rule = "test"};
  return {.enrolled = enrolled,
          .number = host + 1,
          .daemon = host < shape_.daemons,
          .patience_us = shape_.patience_us,
          .fabric = fabric_,
          .contents = contents_,
          .memory_faults = memory_faults,
          .started = [this](JointHost& each) { started(each); },
          .cut_off = [this](NodeIdentity ended) { cut_off(ended); },
          .got_serial = [this, host](std::uint64_t serial) { got_serial(host, serial); },
          .range_freed = [this](std::uint32_t first) { checks_.check_freed(granules_.at(first)); },
          .read_lost = [this, host](Serial serial, std::uint32_t page) { read_lost(host, serial, page); },
          .closed = [this, host](Serial serial, const Runs& lost) { closed(host, serial, lost); },
          .ended = [this] { ended_us_ = queue_.now_us(); }};
}

// ---- faults ----

void JointWorld::started(JointHost& host) {
  host.process().transport().set_faults(faults_);
  const auto at =
      std::uint32_t(std::ranges::find(hosts_, &host, [](const auto& each) { return each.get(); }) - hosts_.begin());
  for (const auto& [from, to] : std::set(cuts_))
    if (from == at || to == at) set_cut(from, to, true);
}

// An end is told to the hosts that run.
JointWorld::~JointWorld() {
  for (const auto& host : hosts_) host->crash(JointHost::Death::unseen);
}

void JointWorld::cut_off(NodeIdentity ended) {
  for (const auto& host : hosts_)
    if (host->running()) fabric_.set_one_way_cut(ended.id, host->process().self().id, true);
}

void JointWorld::set_faults(const rdma::Faults& faults) {
  faults_ = faults;
  for (const auto& host : hosts_)
    if (host->running()) host->process().transport().set_faults(faults);
}

void JointWorld::set_cut(std::uint32_t from, std::uint32_t to, bool cut) {
  if (cut) {
    cuts_.emplace(from, to);
  } else {
    cuts_.erase({from, to});
  }
  if (hosts_[from]->running() && hosts_[to]->running())
    fabric_.set_one_way_cut(hosts_[from]->process().self().id, hosts_[to]->process().self().id, cut);
}

// ---- publications ----

void JointWorld::publish(std::uint32_t host, Plan plan) {
  EnrolledHost& at = hosts_[host]->enrolled();
  plans_[host].push_back(std::move(plan));
  at.waits_for(at.enrollment().take_serial());
  at.wake();
}

void JointWorld::got_serial(std::uint32_t host, std::uint64_t given) {
  JointHost& at = *hosts_[host];
  if (plans_[host].empty() || !at.acts()) return;
  const Plan plan = plans_[host].back();
  plans_[host].pop_back();
  const Serial serial{given};
  const auto before = names_.find(plan.name);
  DirectoryService::Publication what{.serial = serial,
                                     .name = plan.name,
                                     .first_granule = next_granule_,
                                     .granules = shape_.pages,
                                     .page_bytes = PageContents::kPageBytes,
                                     .bytes = shape_.pages * PageContents::kPageBytes,
                                     .copies = plan.copies,
                                     .expires_s = plan.expires_s};
  for (std::size_t i = 0; i < sharing::RegionKey::kBytes; ++i) what.key.push_back(char(random_()));
  std::vector<std::uint64_t> words(shape_.pages);
  std::vector<bool> written(shape_.pages);
  for (std::uint32_t page = 0; page < shape_.pages; ++page) {
    const std::uint64_t kind = random_() % 8;
    if (kind >= 2) words[page] = random_() | 1;
    if (kind >= 5 && before != names_.end()) words[page] = contents_.words(before->second)[page];
    written[page] = words[page] != PageContents::kUnwritten;
    if (written[page]) append(what.written, page);
  }
  granules_[next_granule_] = serial;
  next_granule_ += shape_.pages;
  contents_.add(serial, std::move(words));
  checks_.expect_region(serial, std::move(written));
  names_[plan.name] = serial;
  at.publish(std::move(what), plan.wait_us);
}

// As an owner has to: it unmaps what was removed some time later.
void JointWorld::close_removed() {
  for (std::uint32_t host = shape_.daemons; host < hosts_.size(); ++host) {
    for (const Serial serial : open_at(host)) {
      const auto record = checks_.records().find(serial);
      if (record == checks_.records().end() || !record->second.removed) continue;
      if (!to_close_.emplace(host, serial).second) continue;
      queue_.after(random_() % 3'000'000, [this, host, serial] {
        to_close_.erase({host, serial});
        if (hosts_[host]->open_part(serial) != nullptr) hosts_[host]->close(serial, 2'000'000);
      });
    }
  }
}

// ---- time ----

bool JointWorld::turn() {
  bool did = false;
  for (const auto& host : hosts_) did |= host->turn();
  return did;
}

void JointWorld::run_for(std::uint64_t us) {
  const std::uint64_t end_us = queue_.now_us() + us;
  std::uint64_t pass_us = kLeastPassUs;
  while (queue_.now_us() < end_us && wrong().empty()) {
    pass_us = turn() ? kLeastPassUs : std::min(pass_us * 2, kMostPassUs);
    queue_.run_until(std::min(queue_.now_us() + pass_us, end_us));
    if (queue_.now_us() - checked_us_ >= kCheckUs) check();
  }
}

// ---- checks ----

void JointWorld::check() {
  checked_us_ = queue_.now_us();
  checks_.check();
  check_losses();
  close_removed();
}

// Pages that a home says to be LOST, and did not at the last look.
void JointWorld::check_losses() {
  Pages lost;
  for (const auto& [serial, record] : checks_.records()) {
    const std::optional<std::uint32_t> at = checks_.owner(record.home);
    if (!at || !hosts_[*at]->is_member()) continue;
    const HomeDirectory* const home = hosts_[*at]->directory().home(serial);
    if (home == nullptr || home->over() || home->rebuilding()) continue;
    Runs pages;
    for (std::uint32_t page = 0; page < home->pages().size(); ++page) {
      if (home->pages()[page].state != HomeState::lost) continue;
      lost.emplace(serial, page);
      if (!lost_.contains({serial, page})) append(pages, page);
    }
    if (!pages.empty()) checks_.check_lost(*hosts_[*at], {.serial = serial, .pages = pages});
  }
  ever_lost_.insert(lost.begin(), lost.end());
  lost_ = std::move(lost);
}

// LOST is also what a reader hears of a region that is removed.
void JointWorld::read_lost(std::uint32_t host, Serial serial, std::uint32_t page) {
  const auto& records = checks_.read_records();
  const auto record = records.find(serial);
  if (record == records.end() || record->second.removed) return;
  checks_.expect(ever_lost_.contains({serial, page}) || !checks_.is_somewhere(serial, page),
                 "h{} read page {} of region {} as LOST, which is somewhere", host, page, number(serial));
}

void JointWorld::closed(std::uint32_t host, Serial serial, const Runs& lost) {
  const auto& records = checks_.read_records();
  const auto record = records.find(serial);
  const bool calm = queue_.now_us() - ended_us_ >= kCalmUs &&
                    std::ranges::all_of(hosts_, [](const auto& each) { return !each->running() || each->acts(); });
  if (record == records.end() || record->second.removed || !calm) return;
  const Participant* const part = hosts_[host]->directory().participant(serial);
  for (std::uint32_t page = 0; part != nullptr && page < shape_.pages; ++page) {
    if (part->have(page) != Have::kept || !hosts_[host]->has(serial, page)) continue;
    const bool said = std::ranges::any_of(lost, [&](const Run& run) { return page >= run.first && page < run.end(); });
    const bool elsewhere = std::ranges::any_of(
        hosts_, [&](const auto& each) { return each != hosts_[host] && each->is_member() && each->has(serial, page); });
    // A program may have dropped what its home still counts as cached there.
    const std::optional<std::uint32_t> at = checks_.owner(record->second.home);
    const HomeDirectory* const home = at && hosts_[*at]->is_member() ? hosts_[*at]->directory().home(serial) : nullptr;
    if (home == nullptr || home->pages()[page].cachers != 0) continue;
    checks_.expect(said || elsewhere, "h{} has closed region {}, and nobody has page {}", host, number(serial), page);
  }
}

// ---- the end ----

void JointWorld::recover() {
  end_faults();
  run_for(kCallUs);
  for (const auto& host : hosts_) host->start();
  run_for(3 * lease_us() + kRecoveryUs);
  if (wrong().empty()) read_all();
  if (wrong().empty()) check_end();
}

void JointWorld::end_faults() {
  registry_.faults = {};
  memory_faults = {};
  set_faults({});
  for (const auto& [from, to] : std::set(cuts_)) set_cut(from, to, false);
  for (const auto& host : hosts_) {
    host->go_on();
    if (host->running()) host->process().link().away = host->enrolled().link().away = false;
    host->start();
  }
  std::vector<cluster::Edit> edits;
  for (const auto& [key, record] : registry_.records())
    if (key.starts_with(cluster::kDrainPrefix)) edits.push_back({.key = key, .value = std::nullopt, .lease = {}});
  if (!edits.empty()) registry_.apply(cluster::Commit{.conditions = {}, .edits = edits});
}

void JointWorld::read_all() {
  for (std::uint32_t host = shape_.daemons; host < hosts_.size(); ++host)
    for (const Serial serial : open_at(host))
      for (std::uint32_t page = 0; page < shape_.pages; ++page) hosts_[host]->pages().read(serial, page);
  run_for(kReadUs);
}

void JointWorld::check_end() {
  checks_.check_end();
  for (const auto& host : hosts_) {
    checks_.expect(host->acts(), "{} is no member", host->name());
    if (!host->acts()) return;
    checks_.expect(!host->is_waiting(), "{} still waits", host->name());
    std::uint64_t here = 0;
    for (const auto& [serial, record] : checks_.records()) {
      const Participant* const part = host->open_part(serial);
      for (std::uint32_t page = 0; part != nullptr && page < shape_.pages; ++page)
        here += part->have(page) == Have::cached || part->have(page) == Have::kept ? 1 : 0;
    }
    if (host->is_daemon())
      checks_.expect(host->process().shelved() == here, "{} has memory for {} pages, and {} are of use", host->name(),
                     host->process().shelved(), here);
  }
}

JointWorld::Counts JointWorld::counts() const {
  Counts counts{.lost = checks_.lost, .freed = checks_.freed, .takeovers = checks_.takeovers};
  for (const auto& host : hosts_) counts.hosts += host->counts();
  return counts;
}

std::string JointWorld::digest() const {
  const Counts all = counts();
  return fmt::format("{} us, {} events, {} read, {} retries, {} expelled, {} lost, {} freed, {} takeovers, {} regions",
                     queue_.now_us(), queue_.events(), all.hosts.read, all.hosts.retries, all.hosts.expelled, all.lost,
                     all.freed, all.takeovers, checks_.records().size());
}

}  // namespace vmem::runtime::simulator
