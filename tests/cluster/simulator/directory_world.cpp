#include "cluster/simulator/directory_world.hpp"

#include <algorithm>

namespace vmem::cluster::simulator {
namespace {

using namespace directory;  // all of it is checked here

constexpr std::uint64_t kTickUs = 20'000;
constexpr std::uint64_t kSlackUs = 1'000'000;
constexpr std::uint64_t kRecoveryUs = 20'000'000;
constexpr std::uint64_t kPageBytes = 2u << 20;
constexpr std::string_view kOther = "other";

std::uint64_t number(NodeId id) { return static_cast<std::uint64_t>(id); }
std::uint64_t number(Serial serial) { return static_cast<std::uint64_t>(serial); }

std::int64_t drift_of(std::mt19937_64& random, std::int64_t most_ppm) {
  return std::int64_t(random() % std::uint64_t(2 * most_ppm + 1)) - most_ppm;
}

}  // namespace

DirectoryWorld::Counts& DirectoryWorld::Counts::operator+=(const Counts& other) {
  for (std::uint64_t Counts::* const each :
       {&Counts::published, &Counts::incomplete, &Counts::given_up, &Counts::refused, &Counts::opened, &Counts::wants,
        &Counts::timeouts, &Counts::kept, &Counts::released, &Counts::lost, &Counts::removed, &Counts::freed,
        &Counts::closed, &Counts::left, &Counts::takeovers, &Counts::expelled, &Counts::read, &Counts::refused_bytes})
    this->*each += other.*each;
  return *this;
}

DirectoryWorld::DirectoryWorld(std::uint64_t seed, const DirectoryShape& shape)
    : shape_(shape),
      random_(seed),
      registry_(queue_, drift_of(random_, shape.most_drift_ppm)),
      network_(queue_, seed + 1) {
  network_.usual() = {.least_us = 50, .most_us = 2'000};
  for (std::uint32_t i = 0; i < shape.daemons + shape.programs; ++i)
    hosts_.push_back(
        std::make_unique<DirectoryHost>(registry_, network_, fmt::format("h{}", i), random_(), host_setup(i)));
}

DirectoryHost::Setup DirectoryWorld::host_setup(std::uint32_t host) {
  const bool stranger = shape_.stranger && host + 1 == shape_.daemons + shape_.programs;
  DirectoryHost::Setup setup;
  setup.enrolled.drift_ppm = drift_of(random_, shape_.most_drift_ppm);
  setup.enrolled.clock_began_us = 1 + random_() % 1'000'000'000'000;
  setup.enrolled.registry_timeout_us = shape_.registry_timeout_us;
  setup.enrolled.config = EnrollmentConfig::of_lease(shape_.lease_s);
  ClusterParameters& parameters = setup.enrolled.parameters;
  parameters.base = 1ull << 44;
  parameters.space_bytes = 8 * (1ull << 36);
  parameters.slice_bytes = 1ull << 36;
  parameters.granule_bytes = 2u << 20;
  parameters.page_rule = "test";
  setup.tenant = stranger ? std::string(kOther) : "t";
  setup.address = host;
  setup.daemon = host < shape_.daemons;
  setup.config.keeps_copies = setup.daemon;
  setup.address_of = [this](NodeId id) {
    const auto owner = owners_.find(id);
    return owner == owners_.end() ? std::nullopt : std::optional(owner->second);
  };
  setup.tenant_of = [this,
                     stranger_at = shape_.stranger ? shape_.daemons + shape_.programs - 1 : UINT32_MAX](NodeId id) {
    const auto owner = owners_.find(id);
    return owner != owners_.end() && owner->second == stranger_at ? std::string(kOther) : std::string("t");
  };
  setup.known = [this](NodeId id, const NodeRecord& record) { return known(id, record); };
  setup.got_serial = [this, host](std::uint64_t serial) { got_serial(host, serial); };
  setup.saw = [this, host](const DirectoryEvent& event) { saw(host, event); };
  return setup;
}

KnownNode DirectoryWorld::known(NodeId id, const NodeRecord& record) const {
  const auto label = record.labels.find("host");
  const std::uint32_t host = label == record.labels.end() ? 0 : std::uint32_t(std::stoul(label->second.substr(1)));
  return {.id = id,
          .daemon = host < shape_.daemons,
          .draining = false,
          .rack = fmt::format("r{}", host % 2),
          .host = fmt::format("h{}", host),
          .free_bytes = 1ull << 40};
}

void DirectoryWorld::wrong(const std::string& what) {
  if (wrong_.empty()) wrong_ = fmt::format("at {} us: {}", queue_.now_us(), what);
}

const DirectoryHost* DirectoryWorld::member(NodeId id) const {
  const auto owner = owners_.find(id);
  if (owner == owners_.end()) return nullptr;
  const DirectoryHost& host = *hosts_[owner->second];
  return host.is_member() && host.id() == id ? &host : nullptr;
}

void DirectoryWorld::publish(std::uint32_t host, Plan plan) {
  DirectoryHost& at = *hosts_[host];
  plans_[host].push_back(std::move(plan));
  at.enrolled().waits_for(at.enrolled().enrollment().take_serial());
  at.enrolled().wake();
}

void DirectoryWorld::got_serial(std::uint32_t host, std::uint64_t serial) {
  DirectoryHost& at = *hosts_[host];
  if (plans_[host].empty() || !at.acts()) return;
  const Plan plan = plans_[host].back();
  plans_[host].pop_back();
  std::vector<bool> written(shape_.pages);
  Directory::Publication what{.serial = Serial{serial},
                              .name = plan.name,
                              .first_granule = next_granule_,
                              .granules = shape_.pages,
                              .page_bytes = kPageBytes,
                              .bytes = shape_.pages * kPageBytes - random_() % kPageBytes,
                              .copies = plan.copies,
                              .expires_s = plan.expires_s,
                              .written = {}};
  next_granule_ += shape_.pages;
  for (std::uint32_t page = 0; page < shape_.pages; ++page) {
    written[page] = random_() % 4 != 0;
    if (!written[page]) continue;
    append(what.written, page);
    at.put(Serial{serial}, page);
  }
  written_[Serial{serial}] = written;
  const Ticket ticket = at.directory().publish(std::move(what), plan.wait_us);
  at.waits_for(ticket, plan.wait_us, "publish");
}

void DirectoryWorld::open(std::uint32_t host, const std::string& name, std::uint64_t wait_us) {
  DirectoryHost& at = *hosts_[host];
  at.waits_for(at.directory().open(name, wait_us), wait_us, "open");
}

void DirectoryWorld::close(std::uint32_t host, Serial serial, std::uint64_t wait_us) {
  DirectoryHost& at = *hosts_[host];
  at.waits_for(at.directory().close(serial, wait_us), wait_us, "close");
}

void DirectoryWorld::remove(std::uint32_t host, const std::string& name, std::uint64_t wait_us) {
  DirectoryHost& at = *hosts_[host];
  at.waits_for(at.directory().remove(name, wait_us), wait_us, "remove");
}

void DirectoryWorld::leave(std::uint32_t host, std::uint64_t wait_us) {
  DirectoryHost& at = *hosts_[host];
  at.waits_for(at.directory().leave(wait_us), wait_us, "leave");
}

std::vector<Serial> DirectoryWorld::open_at(std::uint32_t host) const {
  std::vector<Serial> serials;
  if (!hosts_[host]->acts()) return serials;
  const Directory& directory = std::as_const(*hosts_[host]).directory();
  for (const auto& [serial, region] : directory.regions().regions()) {
    const Participant* const there = directory.participant(serial);
    if (there != nullptr && there->stage() == Participant::Stage::open) serials.push_back(serial);
  }
  return serials;
}

bool DirectoryWorld::is_written(Serial serial, std::uint32_t page) const {
  const auto written = written_.find(serial);
  return written != written_.end() && written->second[page];
}

void DirectoryWorld::saw(std::uint32_t host, const DirectoryEvent& event) {
  DirectoryHost& at = *hosts_[host];
  if (const auto* published = std::get_if<PublishEnded>(&event)) {
    counts_.published += published->serial ? 1 : 0;
    if (published->serial) complete_.insert(*published->serial);
    if (!published->serial)
      ++(published->serial.error().status == VMEM_ERROR_IN_USE ? counts_.refused : counts_.incomplete);
    if (!published->serial && !published->published) ++counts_.given_up;
  } else if (const auto* opened = std::get_if<OpenEnded>(&event)) {
    counts_.opened += opened->serial ? 1 : 0;
    const bool strange = shape_.stranger && host + 1 == hosts_.size();
    expect(!opened->serial || !strange || current_[*opened->serial].tenant != "t", "another tenant opened a region");
  } else if (const auto* want = std::get_if<WantEnded>(&event)) {
    ++(want->status ? counts_.wants : counts_.timeouts);
  } else if (const auto* answered = std::get_if<Answered>(&event)) {
    const Run& run = answered->run.pages;
    for (std::uint32_t page = run.first; page < run.end(); ++page)
      expect((answered->run.state == PageState::free) == !is_written(answered->serial, page) ||
                 answered->run.state == PageState::lost,
             "page {} of region {} was answered to be FREE, and is not, or the other way round", page,
             number(answered->serial));
  } else if (const auto* lost = std::get_if<PagesLost>(&event)) {
    check_lost(host, *lost);
  } else if (const auto* freed = std::get_if<RangeFreed>(&event)) {
    check_freed(*freed);
  } else if (const auto* removed = std::get_if<RegionRemoved>(&event)) {
    close_removed(host, at.id(), removed->serial);
  } else if (const auto* left = std::get_if<LeaveEnded>(&event)) {
    counts_.left += left->status ? 1 : 0;
    if (at.acts()) at.enrolled().enrollment().leave({});
    at.enrolled().wake();
  }
  counts_.kept += std::holds_alternative<KeepWanted>(event);
  counts_.released += std::holds_alternative<ReleaseAllowed>(event);
  if (const auto* const removal = std::get_if<RemoveEnded>(&event)) {
    ++counts_.removed;
    counts_.removed_well += removal->status ? 1 : 0;
  }
  counts_.closed += std::holds_alternative<CloseEnded>(event);
}

// As an owner has to: it unmaps the region some time later.
void DirectoryWorld::close_removed(std::uint32_t host, NodeId id, Serial serial) {
  queue_.after(random_() % 3'000'000, [this, host, id, serial] {
    const DirectoryHost& at = *hosts_[host];
    if (!at.running() || at.id() != id) return;
    if (!at.acts()) return close_removed(host, id, serial);
    if (is_open_at(host, serial)) close(host, serial, 2'000'000);
  });
}

bool DirectoryWorld::is_current(const HomeDirectory& home) {
  const auto record = current_.find(home.desk().record().serial);
  return record != current_.end() && record->second.home == home.desk().record().home &&
         record->second.term == home.desk().record().term;
}

void DirectoryWorld::check_lost(std::uint32_t host, const PagesLost& lost) {
  const HomeDirectory* const home = hosts_[host]->directory().home(lost.serial);
  if (home == nullptr || !is_current(*home)) return;
  for (const Run& run : lost.pages) {
    counts_.lost += run.count;
    for (std::uint32_t page = run.first; page < run.end(); ++page) {
      for (const auto& each : hosts_) {
        if (!each->is_member() || !each->has(lost.serial, page)) continue;
        const Participant* const there = std::as_const(*each).directory().participant(lost.serial);
        const std::optional<std::uint32_t> place =
            there == nullptr ? std::nullopt : home->table().find(each->id(), there->session());
        const bool closing = there != nullptr && there->stage() == Participant::Stage::closing;
        if (!place || closing || home->table()[*place].left) continue;
        expect(false, "page {} of region {} is said to be LOST, and node {} has it", page, number(lost.serial),
               number(each->id()));
      }
    }
  }
}

void DirectoryWorld::check_freed(const RangeFreed& freed) {
  ++counts_.freed;
  for (const auto& each : hosts_) {
    if (!each->is_member()) continue;
    const Participant* const there = std::as_const(*each).directory().participant(freed.region.serial);
    expect(there == nullptr || there->stage() == Participant::Stage::closing ||
               there->stage() == Participant::Stage::opening || there->stage() == Participant::Stage::over,
           "the addresses of region {} are given up, and node {} has it open", number(freed.region.serial),
           number(each->id()));
  }
}

void DirectoryWorld::check_keeper(const HomeDirectory& home, std::uint32_t page, std::uint32_t place) {
  const RegionRecord::Participant& who = home.table()[place].who;
  const DirectoryHost* const host = member(who.node);
  if (host == nullptr) return;
  const Serial serial = home.desk().record().serial;
  const Participant* const there = host->directory().participant(serial);
  const bool gone = there == nullptr || there->session() != who.session ||
                    there->stage() == Participant::Stage::closing || there->stage() == Participant::Stage::over;
  if (gone) return;                          // it went at its deadline
  if (host->has_lost(serial, page)) return;  // the home may not have heard of it
  expect(there->have(page) == Have::kept && host->has(serial, page),
         "node {} is counted as a keeper of page {} of region {}, and is none", number(who.node), page, number(serial));
}

void DirectoryWorld::check_home(const DirectoryHost& host, const HomeDirectory& home) {
  const RegionRecord& record = home.desk().record();
  if (home.over() || !is_current(home)) return;
  expect(record.home == host.id(), "node {} acts as the home of region {} for another", number(host.id()),
         number(record.serial));
  if (home.rebuilding()) return;
  for (std::uint32_t page = 0; page < home.pages().size(); ++page)
    for_each_place(home.pages()[page].keepers & home.table().all(),
                   [&](std::uint32_t place) { check_keeper(home, page, place); });
}

void DirectoryWorld::check_waits(const DirectoryHost& host) {
  if (host.enrolled().behind()) return;
  for (const auto& [ticket, wait] : host.waits())
    expect(host.enrolled().clock().now_us() <= wait.deadline_us + kSlackUs, "{}'s {} waits beyond the deadline",
           host.enrolled().name(), wait.what);
}

void DirectoryWorld::check() {
  if (current_at_ != registry_.state().revision()) {
    for (const auto& [key, record] : registry_.records()) {
      const std::optional<Serial> serial = serial_in_key(key);
      if (!serial) continue;
      const Result<RegionRecord> region = parse_region(key, record.value);
      expect(region.has_value(), "{} is damaged", key);
      if (!region) continue;
      Term& term = terms_[*serial];
      expect(region->term >= term, "the term of {} went back", key);
      counts_.takeovers += region->term > term && term != Term{};
      term = region->term;
      current_[*serial] = *region;
    }
    std::erase_if(current_, [this](const auto& each) { return !registry_.records().contains(region_key(each.first)); });
    current_at_ = registry_.state().revision();
  }
  std::set<std::pair<Serial, Term>> acting;
  for (const auto& host : hosts_) {
    expect(host->wrong().empty() && host->enrolled().wrong().empty(), "{}{}", host->wrong(), host->enrolled().wrong());
    if (!host->running()) continue;
    if (host->id() != NodeId{}) owners_[host->id()] = Address(std::stoul(host->enrolled().name().substr(1)));
    check_waits(*host);
    if (!host->is_member()) continue;
    const Directory& directory = std::as_const(*host).directory();
    for (const auto& [serial, region] : current_) {
      const HomeDirectory* const home = directory.home(serial);
      if (home == nullptr || home->over()) continue;
      expect(acting.emplace(serial, home->desk().record().term).second, "two nodes are home of region {} in one term",
             number(serial));
      check_home(*host, *home);
    }
  }
}

void DirectoryWorld::run_for(std::uint64_t us) {
  const std::uint64_t end_us = queue_.now_us() + us;
  while (queue_.now_us() < end_us && wrong_.empty()) {
    queue_.run_until(std::min(queue_.now_us() + kTickUs, end_us), [this] { return !wrong_.empty(); });
    if (wrong_.empty()) check();
  }
}

void DirectoryWorld::read_all() {
  for (std::uint32_t host = 0; host < hosts_.size(); ++host)
    for (const Serial serial : open_at(host))
      for (std::uint32_t page = 0; page < shape_.pages; ++page) hosts_[host]->read(serial, page, 10'000'000);
  run_for(12'000'000);
}

void DirectoryWorld::check_page(const HomeDirectory& home, std::uint32_t page) {
  const Serial serial = home.desk().record().serial;
  bool somebody = false;
  for (std::uint32_t host = 0; host < hosts_.size(); ++host)
    somebody |= is_open_at(host, serial) && hosts_[host]->has(serial, page);
  const HomeState state = home.pages()[page].state;
  if (!is_written(serial, page)) {
    expect(state == HomeState::free || state == HomeState::lost, "page {} of region {} is not FREE", page,
           number(serial));
    return;
  }
  check_promises(home, page);
  expect((state == HomeState::held || state == HomeState::unkept) == somebody,
         "page {} of region {} has state {}, and somebody has it: {}", page, number(serial), int(state), somebody);
  if (!somebody) return;
  check_copies(home, page);
  for (std::uint32_t host = 0; host < hosts_.size(); ++host)
    expect(!is_open_at(host, serial) || hosts_[host]->has(serial, page) ||
               std::as_const(*hosts_[host]).directory().participant(serial)->is_invited(),
           "h{} could not read page {} of region {}", host, page, number(serial));
}

// A copy that its home does not know to be kept could never be dropped.
void DirectoryWorld::check_promises(const HomeDirectory& home, std::uint32_t page) {
  const Serial serial = home.desk().record().serial;
  for (std::uint32_t host = 0; host < hosts_.size(); ++host) {
    if (!is_open_at(host, serial)) continue;
    const Participant& there = *std::as_const(*hosts_[host]).directory().participant(serial);
    const std::optional<std::uint32_t> place = home.table().find(hosts_[host]->id(), there.session());
    const bool known = place && (home.pages()[page].keepers & place_bit(*place)) != 0;
    expect(there.have(page) != Have::kept || known, "h{} keeps page {} of region {} for ever", host, page,
           number(serial));
  }
}

// As many as the daemons can have; the publisher's own does not count.
void DirectoryWorld::check_copies(const HomeDirectory& home, std::uint32_t page) {
  const RegionRecord& record = home.desk().record();
  std::uint32_t daemons = 0, copies = 0;
  for (const auto& host : hosts_) {
    if (!host->is_daemon() || !host->is_member() || host->id() == record.publisher) continue;
    ++daemons;
    const std::optional<std::uint32_t> place = home.table().place_of(host->id());
    copies += place && (home.pages()[page].keepers & place_bit(*place)) != 0 ? 1 : 0;
  }
  expect(copies >= std::min(record.copies, daemons), "page {} of region {} has {} copies of {} on {} daemons", page,
         number(record.serial), copies, record.copies, daemons);
}

void DirectoryWorld::check_end() {
  for (const auto& [serial, record] : current_) {
    const DirectoryHost* const host = member(record.home);
    expect(host != nullptr, "region {} has no home that is a member: node {}", number(serial), number(record.home));
    if (host == nullptr) return;
    const HomeDirectory* const home = host->directory().home(serial);
    expect(home != nullptr && !home->rebuilding(), "the home of region {} does not act", number(serial));
    expect(!record.removed, "region {} is removed, and its record stays", number(serial));
    if (!wrong_.empty()) return;
    for (std::uint32_t page = 0; page < shape_.pages; ++page) check_page(*home, page);
  }
  for (const auto& [key, value] : registry_.records()) {
    if (!key.starts_with(kNamesPrefix)) continue;
    const Result<NameRecord> name = parse_name(key, value.value);
    expect(name && current_.contains(name->serial), "{} names no region", key);
  }
}

void DirectoryWorld::recover() {
  registry_.faults = {};
  for (std::uint32_t from = 0; from < hosts_.size(); ++from)
    for (std::uint32_t to = 0; to < hosts_.size(); ++to) network_.link(from, to) = network_.usual();
  for (const auto& host : hosts_) {
    host->go_on();
    if (host->running()) host->link().away = host->enrolled().link().away = false;
    host->start();
  }
  std::vector<Edit> edits;
  for (const auto& [key, record] : registry_.records())
    if (key.starts_with(kDrainPrefix)) edits.push_back({.key = key, .value = std::nullopt, .lease = {}});
  if (!edits.empty()) registry_.apply(Commit{.conditions = {}, .edits = edits});
  run_for(3 * lease_us() + kRecoveryUs);
  if (wrong_.empty()) read_all();
  if (wrong_.empty()) check_end();
}

DirectoryWorld::Counts DirectoryWorld::counts() const {
  Counts counts = counts_;
  for (const auto& host : hosts_) {
    counts.read += host->counts.read;
    counts.refused_bytes += host->counts.refused;
  }
  return counts;
}

}  // namespace vmem::cluster::simulator
