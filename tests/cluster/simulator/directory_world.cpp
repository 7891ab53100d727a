#include "cluster/simulator/directory_world.hpp"

#include <algorithm>

namespace vmem::cluster::simulator {
namespace {

using namespace directory;  // all of it is checked here

constexpr std::uint64_t kTickUs = 20'000;
constexpr std::uint64_t kRecoveryUs = 20'000'000;
constexpr std::uint64_t kPageBytes = 2u << 20;
constexpr std::string_view kOther = "other";

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
      network_(queue_, seed + 1),
      checks_(registry_, shape.pages) {
  network_.usual() = {.least_us = 50, .most_us = 2'000};
  for (std::uint32_t i = 0; i < shape.daemons + shape.programs; ++i) {
    hosts_.push_back(
        std::make_unique<DirectoryHost>(registry_, network_, fmt::format("h{}", i), random_(), host_setup(i)));
    checks_.watch(*hosts_.back());
  }
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
  setup.address_of = [this](NodeId id) { return checks_.owner(id); };
  setup.tenant_of = [this,
                     stranger_at = shape_.stranger ? shape_.daemons + shape_.programs - 1 : UINT32_MAX](NodeId id) {
    return checks_.owner(id) == stranger_at ? std::string(kOther) : std::string("t");
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
          .forced = false,
          .rack = fmt::format("r{}", host % 2),
          .host = fmt::format("h{}", host),
          .free_bytes = 1ull << 40};
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
  checks_.expect_region(Serial{serial}, std::move(written));
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
    const auto record = opened->serial ? checks_.records().find(*opened->serial) : checks_.records().end();
    // It may have been erased since.
    checks_.expect(!strange || record == checks_.records().end() || record->second.tenant != "t",
                   "another tenant opened a region");
  } else if (const auto* want = std::get_if<WantEnded>(&event)) {
    ++(want->status ? counts_.wants : counts_.timeouts);
  } else if (const auto* answered = std::get_if<Answered>(&event)) {
    const Run& run = answered->run.pages;
    for (std::uint32_t page = run.first; page < run.end(); ++page)
      checks_.expect((answered->run.state == PageState::free) == !is_written(answered->serial, page) ||
                         answered->run.state == PageState::lost,
                     "page {} of region {} was answered to be FREE, and is not, or the other way round", page,
                     number(answered->serial));
  } else if (const auto* lost = std::get_if<PagesLost>(&event)) {
    checks_.check_lost(at, *lost);
  } else if (const auto* freed = std::get_if<RangeFreed>(&event)) {
    checks_.check_freed(freed->region.serial);
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

void DirectoryWorld::run_for(std::uint64_t us) {
  const std::uint64_t end_us = queue_.now_us() + us;
  while (queue_.now_us() < end_us && wrong().empty()) {
    queue_.run_until(std::min(queue_.now_us() + kTickUs, end_us), [this] { return !wrong().empty(); });
    if (wrong().empty()) checks_.check();
  }
}

void DirectoryWorld::read_all() {
  for (std::uint32_t host = 0; host < hosts_.size(); ++host)
    for (const Serial serial : open_at(host))
      for (std::uint32_t page = 0; page < shape_.pages; ++page) hosts_[host]->read(serial, page, 10'000'000);
  run_for(12'000'000);
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
  if (wrong().empty()) read_all();
  if (wrong().empty()) checks_.check_end();
}

DirectoryWorld::Counts DirectoryWorld::counts() const {
  Counts counts = counts_;
  counts.lost = checks_.lost;
  counts.freed = checks_.freed;
  counts.takeovers = checks_.takeovers;
  for (const auto& host : hosts_) {
    counts.read += host->counts.read;
    counts.refused_bytes += host->counts.refused;
  }
  return counts;
}

}  // namespace vmem::cluster::simulator
