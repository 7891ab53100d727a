#include "cluster/simulator/enrollment_world.hpp"

#include <utility>

namespace vmem::cluster::simulator {
namespace {

constexpr std::uint64_t kTickUs = 50'000;
constexpr std::uint64_t kSlackUs = 1'000'000;
constexpr std::uint64_t kRecoveryUs = 15'000'000;  // beyond two leases: backoff, polls, requests

std::uint64_t number(NodeId id) { return static_cast<std::uint64_t>(id); }

std::int64_t drift_of(std::mt19937_64& random, std::int64_t most_ppm) {
  return std::int64_t(random() % std::uint64_t(2 * most_ppm + 1)) - most_ppm;
}

}  // namespace

EnrollmentWorld::Counts& EnrollmentWorld::Counts::operator+=(const Counts& other) {
  for (std::uint64_t Counts::* const each :
       {&Counts::enrolled, &Counts::expelled, &Counts::fenced, &Counts::fences_ended, &Counts::left, &Counts::serials,
        &Counts::slices, &Counts::timeouts, &Counts::gone, &Counts::rows, &Counts::changes})
    this->*each += other.*each;
  return *this;
}

EnrollmentWorld::EnrollmentWorld(std::uint64_t seed, const WorldShape& shape)
    : shape_(shape),
      config_(EnrollmentConfig::of_lease(shape.lease_s)),
      registry_(queue_,
                [&] {
                  std::mt19937_64 random(seed);
                  return drift_of(random, shape.most_drift_ppm);
                }()),
      network_(queue_, seed + 1) {
  std::mt19937_64 random(seed + 2);
  for (std::uint32_t i = 0; i < shape.hosts; ++i) {
    EnrolledHost::Setup setup = host_setup(random, i);
    hosts_.push_back(std::make_unique<EnrolledHost>(registry_, fmt::format("h{}", i), random(), std::move(setup)));
    network_.attach(i, [this, i](Address, const std::string& revision) {
      EnrolledHost& host = *hosts_[i];
      if (!host.running() || host.stopped()) return;
      host.enrollment().poke(Revision(std::stoll(revision)));
      host.wake();
    });
  }
}

EnrolledHost::Setup EnrollmentWorld::host_setup(std::mt19937_64& random, std::uint32_t host) {
  return {.drift_ppm = drift_of(random, shape_.most_drift_ppm),
          .clock_began_us = 1 + random() % 1'000'000'000'000,
          .registry_timeout_us = shape_.registry_timeout_us,
          .parameters = {.base = 1ull << 44,
                         .space_bytes = shape_.slices * (1ull << 36),
                         .slice_bytes = 1ull << 36,
                         .granule_bytes = 2u << 20,
                         .page_rule = "test"},
          .config = config_,
          .saw = [this, host](const EnrollmentEvent& event) { saw(host, event); }};
}

void EnrollmentWorld::wrong(const std::string& what) {
  if (wrong_.empty()) wrong_ = fmt::format("at {} us: {}", queue_.now_us(), what);
}

void EnrollmentWorld::once(std::uint64_t serial) {
  expect(serial != 0 && serials_.insert(serial).second, "serial {} was given out twice", serial);
}

void EnrollmentWorld::saw(std::uint32_t host, const EnrollmentEvent& event) {
  if (const auto* enrolled = std::get_if<Enrolled>(&event)) {
    ++counts_.enrolled;
    once(number(enrolled->self));
  } else if (const auto* serial = std::get_if<SerialTaken>(&event)) {
    if (serial->serial) once(*serial->serial);
    counts_.serials += serial->serial ? 1 : 0;
    counts_.timeouts += serial->serial ? 0 : 1;
  } else if (const auto* slices = std::get_if<SlicesTaken>(&event)) {
    counts_.slices += slices->slices ? slices->slices->size() : 0;
    counts_.rows += slices->slices && slices->slices->size() > 1;
  } else if (const auto* gone = std::get_if<NodeGone>(&event)) {
    ++counts_.gone;
    gone_.insert(gone->node);
    checked_ = {};
  } else if (std::holds_alternative<RecordChanged>(event)) {
    ++counts_.changes;
    check_change(*hosts_[host]);
  } else if (const auto* refused = std::get_if<Refused>(&event)) {
    expect(false, "host {} was refused: {}", host, refused->why.message);
  }
  counts_.expelled += std::holds_alternative<Expelled>(event);
  counts_.fenced += std::holds_alternative<Fenced>(event);
  counts_.fences_ended += std::holds_alternative<FenceEnded>(event);
  counts_.left += std::holds_alternative<Left>(event);
}

// The record may be gone again, and then the host does not know that yet.
void EnrollmentWorld::check_change(EnrolledHost& host) {
  if (!host.running() || host.changing()) return;
  const std::string key = node_key(host.enrollment().id());
  const auto found = registry_.records().find(key);
  if (found == registry_.records().end()) return;
  const Result<NodeRecord> record = parse_node_record(key, found->second.value);
  expect(record && record->lends.memory == host.memory(), "{} was changed, and the registry does not say so", key);
}

const std::string& EnrollmentWorld::value_of(NodeId node) {
  const auto [value, is_new] = slice_values_.try_emplace(node);
  if (is_new) value->second = slice_value(node);
  return value->second;
}

void EnrollmentWorld::check_host(const EnrolledHost& host, std::set<NodeId>& ids, std::set<Slice>& slices) {
  const Enrollment& enrollment = host.enrollment();
  if (enrollment.fenced()) return;
  const NodeId id = enrollment.id();
  expect(ids.insert(id).second, "two live unfenced nodes have the id {}", number(id));
  const auto& records = registry_.records();
  const auto own = records.find(node_key(id));
  expect(own != records.end() && own->second.value.find(host.name() + ":") != std::string::npos,
         "{} is not fenced, and its lease has ended: node {}", host.name(), number(id));
  for (const Slice slice : enrollment.slices()) {
    expect(slices.insert(slice).second, "two live unfenced nodes hold {}", slice_key(slice));
    const auto record = records.find(slice_key(slice));
    expect(record != records.end() && record->second.value == value_of(id),
           "node {} holds {}, and the registry does not say so", number(id), slice_key(slice));
  }
}

void EnrollmentWorld::check_records() {
  std::set<std::pair<std::string, std::uint64_t>> processes;
  std::set<std::string> slice_values;
  for (const auto& [key, record] : registry_.records()) {
    const std::optional<NodeId> id = id_in_key(key, kNodesPrefix);
    const Result<NodeRecord> node = parse_node_record(key, record.value);
    if (!id || !node) continue;
    expect(!gone_.contains(*id), "node {} is back, or never went", number(*id));
    slice_values.insert(value_of(*id));
    expect(processes.emplace(node->labels.at("host"), node->pid).second, "{} has two records, one of them {}",
           node->labels.at("host"), key);
  }
  for (const auto& [key, record] : registry_.records()) {
    const bool latest = key.starts_with(kSlicesPrefix) && record.modified == registry_.state().revision();
    expect(!latest || slice_values.contains(record.value), "{} was put for a node that had ended", key);
  }
}

void EnrollmentWorld::check_waits(const EnrolledHost& host) {
  if (host.behind()) return;
  for (const auto& [ticket, asked_us] : host.waits())
    expect(host.clock().now_us() <= asked_us + config_.request_us + kSlackUs, "{} waits beyond the deadline",
           host.name());
}

void EnrollmentWorld::check() {
  std::set<NodeId> ids;
  std::set<Slice> slices;
  for (const auto& host : hosts_) {
    expect(host->wrong().empty(), "{}", host->wrong());
    if (!host->running()) continue;
    check_host(*host, ids, slices);
    check_waits(*host);
  }
  if (std::exchange(checked_, registry_.state().revision()) != registry_.state().revision()) check_records();
}

void EnrollmentWorld::run_for(std::uint64_t us) {
  const std::uint64_t end_us = queue_.now_us() + us;
  while (queue_.now_us() < end_us && wrong_.empty()) {
    queue_.run_until(std::min(queue_.now_us() + kTickUs, end_us), [this] {
      check();
      return !wrong_.empty();
    });
    if (wrong_.empty()) check();
  }
}

void EnrollmentWorld::gossip(Address from) {
  const std::string revision = fmt::to_string(std::int64_t(registry_.state().revision()));
  for (Address to = 0; to < hosts_.size(); ++to)
    if (to != from) network_.send(from, to, revision);
}

void EnrollmentWorld::check_view(const EnrolledHost& host, const std::set<NodeId>& live) {
  std::set<NodeId> seen{host.enrollment().id()};
  for (const auto& [id, node] : host.enrollment().members().nodes()) seen.insert(id);
  // Of a node whose record nobody can read it is known that it is listed.
  std::set<NodeId> listed = live;
  for (const auto& [key, record] : registry_.records())
    if (const auto id = id_in_key(key, kNodesPrefix); id && !parse_node_record(key, record.value)) listed.insert(*id);
  expect(seen == listed, "{} sees {} nodes of {}", host.name(), seen.size(), listed.size());
  for (const NodeId id : live)
    expect(host.enrollment().members().draining(id) == registry_.records().contains(drain_key(id)),
           "{} is wrong about the mark of node {}", host.name(), number(id));
  for (const auto& [id, node] : host.enrollment().members().nodes()) {
    if (live.contains(id))
      expect(json_of(node.record) == registry_.records().at(node_key(id)).value, "{} has an old record of node {}",
             host.name(), number(id));
  }
  expect(host.enrollment().members().view().members.size() + 1 == listed.size(), "{}'s membership differs",
         host.name());
}

template <class Call>
void EnrollmentWorld::for_each_running(Call&& call) {
  for (const auto& host : hosts_)
    if (host->running() && wrong_.empty()) call(*host);
}

// Slices under its name that it does not hold.
std::set<Slice> EnrollmentWorld::left_over(const EnrolledHost& host) {
  std::set<Slice> left;
  for (std::uint32_t i = 0; i < shape_.slices; ++i) {
    const auto record = registry_.records().find(slice_key(Slice{i}));
    if (record != registry_.records().end() && record->second.value == value_of(host.enrollment().id()) &&
        !host.enrollment().slices().contains(Slice{i}))
      left.insert(Slice{i});
  }
  return left;
}

void EnrollmentWorld::check_left_over() {
  std::map<const EnrolledHost*, std::set<Slice>> before;
  for_each_running([&](EnrolledHost& host) {
    before[&host] = host.enrollment().slices();
    host.take_slices(1);
  });
  run_for(kRecoveryUs);
  for_each_running([&](EnrolledHost& host) {
    const std::set<Slice> held = host.enrollment().slices();
    for (const Slice slice : held)
      if (!before[&host].contains(slice)) expect(host.enrollment().release_slice(slice).has_value(), "it is held");
    for (const Slice slice : left_over(host))
      if (!held.contains(slice))
        expect(host.enrollment().release_slice(slice).has_value(), "{} is left over under the name of {}",
               slice_key(slice), host.name());
    host.wake();
  });
  run_for(kRecoveryUs);
  for_each_running([&](EnrolledHost& host) {
    expect(left_over(host).empty(), "{} has slices under its name that it released", host.name());
    expect(host.enrollment().slices() == before[&host], "{} holds other slices than before", host.name());
  });
}

void EnrollmentWorld::recover() {
  registry_.faults = {};
  for (const auto& host : hosts_) {
    host->go_on();
    if (host->running()) host->link().away = false;
  }
  run_for(3 * lease_us() + kRecoveryUs);
  std::set<NodeId> live;
  for_each_running([&](EnrolledHost& host) {
    expect(host.enrollment().stage() == Enrollment::Stage::enrolled && !host.enrollment().fenced(),
           "{} is not enrolled after all faults", host.name());
    expect(host.waits().empty(), "{} still waits", host.name());
    expect(!host.changing(), "{} still changes its record", host.name());
    if (wrong_.empty()) check_change(host);
    live.insert(host.enrollment().id());
  });
  for_each_running([&](EnrolledHost& host) { check_view(host, live); });
  check_left_over();
}

}  // namespace vmem::cluster::simulator
