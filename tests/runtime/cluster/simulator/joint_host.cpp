#include "runtime/cluster/simulator/joint_host.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace vmem::runtime::simulator {

using namespace cluster::directory;  // NOLINT(google-build-using-namespace): its regions
using cluster::EnrollmentEvent;
using cluster::simulator::EnrolledHost;

namespace {

constexpr std::uint64_t kMostRuns = 1'000'000;
// A page in flight may take twice as long as those before it have taken (PageCalls), and messages
// are late by 3 s.
constexpr std::uint64_t kInFlightUs = 6'000'000;

}  // namespace

JointHost::Counts& JointHost::Counts::operator+=(const Counts& other) {
  for (std::uint64_t Counts::* const each :
       {&Counts::published, &Counts::incomplete, &Counts::refused, &Counts::opened, &Counts::unopened, &Counts::closed,
        &Counts::removed, &Counts::left, &Counts::expelled, &Counts::read, &Counts::lost, &Counts::failed,
        &Counts::reused, &Counts::mismatches, &Counts::retries})
    this->*each += other.*each;
  return *this;
}

JointHost::JointHost(cluster::simulator::SimulatedRegistry& registry, std::string name, std::uint64_t seed, Setup setup)
    : registry_(registry),
      setup_(std::move(setup)),
      random_(seed),
      enrolled_(registry, std::move(name), seed + 1, [this] {
        EnrolledHost::Setup enrolled = setup_.enrolled;
        enrolled.describe = [this](cluster::NodeRecord& record) { describe(record); };
        enrolled.saw = [this](const EnrollmentEvent& event) { saw(event); };
        enrolled.ran = [this] { ran(); };
        return enrolled;
      }()) {}

// ---- the process ----

void JointHost::start() {
  if (running()) return;
  end(Death::seen);
  ++runs_;
  process_ = std::make_shared<Process>(
      JointProcess::Setup{.self = {NodeId{setup_.number * kMostRuns + runs_}, Incarnation{runs_}},
                          .daemon = setup_.daemon,
                          .seed = random_(),
                          .clock = enrolled_.clock(),
                          .fabric = setup_.fabric,
                          .registry = registry_,
                          .registry_timeout_us = setup_.enrolled.registry_timeout_us,
                          .contents = setup_.contents,
                          .memory_faults = setup_.memory_faults,
                          .pages = {.clock = enrolled_.clock(),
                                    .contents = setup_.contents,
                                    .patience_us = setup_.patience_us,
                                    .read_lost = setup_.read_lost},
                          .range_freed = [this](std::uint32_t first, std::uint32_t) { setup_.range_freed(first); }});
  enrolled_.start();
  setup_.started(*this);
}

void JointHost::describe(cluster::NodeRecord& record) {
  record.incarnation = process_->self().incarnation;
  record.transport = static_cast<std::uint64_t>(process_->self().id);
  record.addresses = {process_->address()};
  record.kind = setup_.daemon ? "daemon" : "program";
  record.labels["rack"] = setup_.number % 2 == 0 ? "r0" : "r1";
  if (setup_.daemon) record.lends.copies = JointProcess::kCopiesBytes;
  process_->record = record;
}

void JointHost::crash(Death death) {
  enrolled_.crash();
  end(death);
}

void JointHost::end(Death death) {
  if (!process_) return;
  const NodeIdentity self = process_->self();
  if (death == Death::seen) setup_.fabric.kill(self.id);
  setup_.cut_off(self);
  counts_ += counts_of(*process_);
  wrong_ = wrong();
  process_.reset();
  setup_.ended();
}

void JointHost::stop() {
  enrolled_.stop();
  behind_ = true;
}

void JointHost::go_on() { enrolled_.go_on(); }

bool JointHost::turn() {
  if (!process_ || enrolled_.stopped()) return false;
  behind_ = false;
  return process_->turn();
}

// ---- membership ----

// As Member does, which tells the nodes that are known when it has taken all events.
void JointHost::saw(const EnrollmentEvent& event) {
  nodes_changed_ = true;
  if (!process_) return;
  if (const auto* serial = std::get_if<cluster::SerialTaken>(&event); serial != nullptr && serial->serial)
    setup_.got_serial(*serial->serial);
  if (std::holds_alternative<cluster::Expelled>(event)) {
    ++counts_.expelled;
    setup_.ended();
    process_->fence().set({}, 0);
    process_->told = {};
    process_->service().expelled();
    if (process_->pages()) process_->pages()->forget_all();
  }
  if (std::holds_alternative<cluster::Left>(event))
    registry_.queue().after(0, [this, left = std::weak_ptr(process_)] {
      if (!left.expired() && left.lock() == process_) end(Death::seen);
    });
}

void JointHost::ran() {
  if (!running()) return;
  const cluster::Enrollment& enrollment = enrolled_.enrollment();
  process_->fence().set(enrollment.id(), enrollment.fence_at_us());
  const cluster::RegistryMembers& members = enrollment.members();
  if (enrollment.stage() != cluster::Enrollment::Stage::enrolled || !members.known()) return;
  if (members.as_of() == process_->told && !nodes_changed_) return;
  nodes_changed_ = false;
  process_->told = members.as_of();
  process_->service().see(cluster_view(enrollment, process_->record));
}

// ---- what the checks see ----

bool JointHost::is_member() const { return id() != NodeId{} && !std::as_const(*process_).fence().is_up(id()); }

std::string JointHost::false_membership() const {
  if (!is_member() || id() == enrolled_.enrollment().id()) return {};
  return fmt::format("acts as node {}, whose membership is over", static_cast<std::uint64_t>(id()));
}

bool JointHost::has_lost(Serial serial, std::uint32_t page) const {
  return process_ && process_->pages() && process_->pages()->has_lost(serial, page);
}

const char* JointHost::overdue(std::uint64_t slack_us) const {
  if (behind_ || !process_) return nullptr;
  const std::uint64_t now_us = enrolled_.clock().now_us();
  for (const auto& [number, wait] : process_->waits)
    if (now_us > wait.deadline_us + slack_us) return wait.what;
  return process_->pages() && process_->pages()->is_overdue(slack_us + kInFlightUs) ? "read" : nullptr;
}

std::string JointHost::wrong() const {
  if (!wrong_.empty()) return wrong_;
  std::string all = enrolled_.wrong() + false_membership();
  if (process_) all += process_->wrong();
  if (process_ && process_->pages()) all += process_->pages()->wrong();
  return all.empty() ? all : name() + ": " + all;
}

JointHost::Counts JointHost::counts_of(const Process& process) {
  const sharing::SharedCounters fetched = process.fetched();
  Counts counts{.reused = fetched.reused, .mismatches = fetched.mismatches, .retries = fetched.retries};
  if (process.pages() == nullptr) return counts;
  counts.read = process.pages()->counts.read;
  counts.lost = process.pages()->counts.lost;
  counts.failed = process.pages()->counts.failed;
  return counts;
}

JointHost::Counts JointHost::counts() const {
  Counts counts = counts_;
  if (process_) counts += counts_of(*process_);
  return counts;
}

// ---- calls ----

template <class Value>
DirectoryService::Done<Value> JointHost::ends(const char* what, std::uint64_t wait_us,
                                              std::function<void(Value&)> then) {
  const std::uint64_t number = ++process_->last_wait;
  process_->waits[number] = {.deadline_us = enrolled_.clock().now_us() + wait_us, .what = what};
  return [this, number, then = std::move(then), weak = std::weak_ptr(process_)](Value value) {
    const auto same = weak.lock();
    if (same == nullptr || same != process_) return;
    if (same->waits.erase(number) == 0) wrong_ = "a call ended twice";
    then(value);
  };
}

void JointHost::publish(DirectoryService::Publication what, std::uint64_t wait_us) {
  RegionRecord region{.serial = what.serial,
                      .name = what.name,
                      .first_granule = what.first_granule,
                      .granules = what.granules,
                      .page_bytes = what.page_bytes,
                      .bytes = what.bytes,
                      .pages = std::uint32_t((what.bytes - 1) / what.page_bytes + 1),
                      .tenant = DirectoryService::tenant_of(""),
                      .key = what.key};
  pages().publish(region);
  const Serial serial = what.serial;
  process_->service().publish(
      std::move(what), wait_us,
      ends<DirectoryService::Published>("publish", wait_us, [this, serial](DirectoryService::Published& published) {
        const bool in_use = !published.status && published.status.error().status == VMEM_ERROR_IN_USE;
        ++(published.status ? counts_.published : in_use ? counts_.refused : counts_.incomplete);
        if (!published.done) pages().forget(serial);
      }));
}

void JointHost::open(const std::string& name, std::uint64_t wait_us) {
  process_->service().open(name, wait_us, ends<Result<RegionRecord>>("open", wait_us, [this](auto& opened) {
                             ++(opened ? counts_.opened : counts_.unopened);
                             if (opened) pages().open(*opened);
                           }));
}

// Others may fetch pages from here until the directory has let go.
void JointHost::close(Serial serial, std::uint64_t wait_us) {
  process_->service().close(serial, wait_us, ends<Result<Runs>>("close", wait_us, [this, serial](auto& lost) {
                              ++counts_.closed;
                              if (lost) setup_.closed(serial, *lost);
                              pages().forget(serial);
                            }));
}

void JointHost::remove(const std::string& name, std::uint64_t wait_us) {
  process_->service().remove(
      name, wait_us, ends<Status>("remove", wait_us, [this](Status& removed) { counts_.removed += removed ? 1 : 0; }));
}

void JointHost::leave(std::uint64_t wait_us) {
  process_->service().leave(wait_us, ends<Status>("leave", wait_us, [this](Status& left) {
                              counts_.left += left ? 1 : 0;
                              if (!enrolled_.running()) return;
                              enrolled_.enrollment().leave({});
                              enrolled_.wake();
                            }));
}

}  // namespace vmem::runtime::simulator
