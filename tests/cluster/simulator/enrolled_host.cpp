#include "cluster/simulator/enrolled_host.hpp"

#include <fmt/format.h>

#include <utility>

namespace vmem::cluster::simulator {
namespace {

constexpr int kMostSteps = 1000;  // in a row

template <class... Each>
struct Overloaded : Each... {
  using Each::operator()...;
};

Random random_of(std::uint64_t seed) {
  return [random = std::make_shared<std::mt19937_64>(seed)] { return (*random)(); };
}

}  // namespace

EnrolledHost::EnrolledHost(SimulatedRegistry& registry, std::string name, std::uint64_t seed, Setup setup)
    : registry_(registry),
      name_(std::move(name)),
      setup_(std::move(setup)),
      clock_(registry.queue(), setup_.drift_ppm, setup_.clock_began_us),
      random_(seed) {}

NodeRecord EnrolledHost::record() const {
  NodeRecord record{.incarnation = Incarnation{runs_},
                    .addresses = {name_ + ":7000"},
                    .boot = "boot",
                    .pid = runs_,
                    .kind = "program",
                    .labels = {{"host", name_}},
                    .lends = {},
                    .token = {}};
  if (setup_.describe) setup_.describe(record);
  return record;
}

EnrolledHost::Process::Process(EnrolledHost& host, SimulatedRegistry& registry, std::uint64_t seed)
    : link(registry, seed, host.setup_.registry_timeout_us, [&host] { host.wake(); }),
      enrollment(link, host.clock_,
                 {.parameters = host.setup_.parameters,
                  .self = host.record(),
                  .config = host.setup_.config,
                  .random = random_of(seed + 1)}) {}

void EnrolledHost::expect(bool right, std::string what) {
  if (!right && wrong_.empty()) wrong_ = fmt::format("{}: {}", name_, what);
}

void EnrolledHost::start() {
  if (process_) return;
  stopped_ = behind_ = false;
  ++runs_;
  process_ = std::make_shared<Process>(*this, registry_, random_());
  wake();
}

void EnrolledHost::crash() {
  process_.reset();
  stopped_ = false;
}

void EnrolledHost::go_on() {
  stopped_ = false;
  if (process_) wake();
}

void EnrolledHost::take_slices(std::uint32_t count) {
  const Ticket ticket = process_->enrollment.take_slices(count);
  process_->counts[ticket] = count;
  waits_for(ticket);
  wake();
}

void EnrolledHost::change_record(std::uint64_t memory) {
  NodeRecord record = this->record();
  record.lends.memory = memory;
  const Enrollment::Stage stage = process_->enrollment.stage();
  const Ticket ticket = process_->enrollment.change_record(std::move(record)).value();
  wake();
  // One that leaves changes nothing more.
  if (stage == Enrollment::Stage::leaving || stage == Enrollment::Stage::over) return;
  process_->memory = memory;
  process_->change = ticket;
}

void EnrolledHost::wake() {
  if (!process_ || process_->woken) return;
  process_->woken = true;
  registry_.queue().after(0, [this, process = std::weak_ptr(process_)] {
    if (process.expired() || process.lock() != process_) return;
    process_->woken = false;
    run();
  });
}

void EnrolledHost::run() {
  if (!process_ || stopped_) return;
  behind_ = false;
  int steps = 0;
  while (process_->enrollment.step() && steps < kMostSteps) ++steps;
  expect(steps < kMostSteps, "steps without end");
  take_events();
  if (process_) post_due();
  if (setup_.ran) setup_.ran();
}

// Runs when it says that it is due, and not before, unless a reply wakes it.
void EnrolledHost::post_due() {
  const std::uint64_t due_us = process_->enrollment.next_due_us();
  const std::uint64_t number = ++process_->due;
  if (due_us == UINT64_MAX) return;
  expect(due_us > clock_.now_us(), "is due, and a step did nothing");
  registry_.queue().at(clock_.virtual_us(due_us), [this, number, process = std::weak_ptr(process_)] {
    const auto same = process.lock();
    if (same != nullptr && same == process_ && same->due == number) run();
  });
}

void EnrolledHost::take_events() {
  std::vector<EnrollmentEvent> events;
  process_->enrollment.poll(events);
  bool over = false;
  for (const EnrollmentEvent& event : events) {
    take_event(event);
    over |= std::holds_alternative<Left>(event) || std::holds_alternative<Refused>(event);
    if (setup_.saw) setup_.saw(event);
  }
  std::set<NodeId> nodes;
  for (const auto& [id, node] : process_->enrollment.members().nodes()) nodes.insert(id);
  expect(nodes == process_->seen, "the events do not reproduce the view");
  expect(!over || process_->waits.empty(), "left, and something waits");
  if (over) process_.reset();
}

void EnrolledHost::answered(Ticket ticket, const std::optional<Error>& error) {
  const auto wait = process_->waits.find(ticket);
  expect(wait != process_->waits.end(), "a ticket was answered twice");
  if (wait == process_->waits.end()) return;
  const std::uint64_t waited_us = clock_.now_us() - wait->second;
  if (error && error->status == VMEM_ERROR_TIMEOUT)
    expect(waited_us >= setup_.config.request_us, "gave up early: " + error->message);
  process_->waits.erase(wait);
}

void EnrolledHost::took(const SlicesTaken& taken) {
  const auto count = process_->counts.extract(taken.ticket);
  if (!taken.slices) return;
  expect(taken.slices->size() == (count ? count.mapped() : 1), "got another number of slices");
  for (std::size_t i = 1; i < taken.slices->size(); ++i)
    expect(std::uint32_t((*taken.slices)[i]) == std::uint32_t((*taken.slices)[0]) + i, "got slices that are apart");
  for (const Slice slice : *taken.slices) process_->former.erase(slice);
}

void EnrolledHost::take_event(const EnrollmentEvent& event) {
  const auto error_of = [](const auto& result) { return result ? std::nullopt : std::optional<Error>(result.error()); };
  Process& process = *process_;
  std::visit(
      Overloaded{
          [&](const SerialTaken& taken) { answered(taken.ticket, error_of(taken.serial)); },
          [&](const SlicesTaken& taken) {
            answered(taken.ticket, error_of(taken.slices));
            took(taken);
          },
          [&](const Expelled& expelled) {
            for (const Slice slice : expelled.slices) process.former[slice] = expelled.former;
          },
          [&](const RecordChanged& changed) {
            expect(process.change && changed.ticket <= *process.change, "a change was answered twice");
            if (process.change == changed.ticket) process.change.reset();
          },
          [&](const NodeChanged& node) { expect(process.seen.contains(node.node), "changed, and was not there"); },
          [&](const NodeAppeared& node) { expect(process.seen.insert(node.node).second, "appeared twice"); },
          [&](const NodeGone& node) { expect(process.seen.erase(node.node) == 1, "gone, and was not there"); },
          [](const auto&) {},
      },
      event);
}

}  // namespace vmem::cluster::simulator
