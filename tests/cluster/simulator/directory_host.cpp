#include "cluster/simulator/directory_host.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace vmem::cluster::simulator {
namespace {

using namespace directory;  // all of it is driven here

constexpr int kMostSteps = 2000;              // in a row
constexpr std::uint64_t kSourceUs = 600'000;  // for a source to answer
constexpr std::uint64_t kMostRoundsUs = 20'000;
constexpr std::uint64_t kMostThreadsUs = 300'000;  // between the threads of a busy program

std::uint64_t number(NodeId id) { return static_cast<std::uint64_t>(id); }

Random random_of(std::uint64_t seed) {
  return [random = std::make_shared<std::mt19937_64>(seed)] { return (*random)(); };
}

void put_number(std::string& text, std::uint64_t value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::uint64_t take_number(std::string_view& text) {
  std::uint64_t value = 0;
  std::memcpy(&value, text.data(), sizeof value);
  text.remove_prefix(sizeof value);
  return value;
}

}  // namespace

std::uint64_t bytes_of(Serial serial, std::uint32_t page) {
  return static_cast<std::uint64_t>(serial) * 1'000'003 + page * 7919u + 1;
}

DirectoryHost::DirectoryHost(SimulatedRegistry& registry, SimulatedNetwork& network, std::string name,
                             std::uint64_t seed, Setup setup)
    : registry_(registry),
      network_(network),
      name_(std::move(name)),
      setup_(std::move(setup)),
      random_(seed),
      enrolled_(registry, name_, seed + 1, [this] {
        EnrolledHost::Setup enrolled = setup_.enrolled;
        enrolled.saw = [this](const EnrollmentEvent& event) { enrollment_event(event); };
        enrolled.ran = [this] { wake(); };
        return enrolled;
      }()) {
  network_.attach(setup_.address, [this](Address from, const std::string& message) { receive(from, message); });
}

DirectoryHost::Process::Process(DirectoryHost& host, std::uint64_t seed)
    : link(host.registry_, seed, host.setup_.enrolled.registry_timeout_us, [&host] { host.wake(); }),
      random(seed + 1),
      directory(link, host.enrolled_.clock(),
                {.config = host.setup_.config,
                 .random = random_of(seed + 2),
                 .tenant = host.setup_.tenant,
                 .fenced = [&host] { return !host.enrolled_.running() || host.enrolled_.enrollment().fenced(); },
                 .unix_s = [&host] { return 1'000'000 + host.registry_.queue().now_us() / 1'000'000; }}) {}

void DirectoryHost::expect(bool right, const std::string& what) {
  if (!right && wrong_.empty()) wrong_ = fmt::format("{}: {}", name_, what);
}

void DirectoryHost::start() {
  if (running()) return;
  process_ = std::make_shared<Process>(*this, random_());
  enrolled_.start();
}

void DirectoryHost::crash() {
  enrolled_.crash();
  process_.reset();
}

void DirectoryHost::go_on() {
  enrolled_.go_on();
  if (!process_) return;
  std::vector<std::uint64_t> turns;
  for (const auto& [turn, job] : process_->jobs) turns.push_back(turn);
  for (const std::uint64_t turn : turns) {
    const auto found = process_->jobs.find(turn);
    if (found == process_->jobs.end()) continue;
    found->second.landed ? take(turn) : ask_next(turn);
  }
  for (const Page& page : std::set(process_->gone)) say_gone(page);
  wake();
}

bool DirectoryHost::is_member() const { return running() && id() != NodeId{} && !enrolled_.enrollment().fenced(); }
bool DirectoryHost::acts() const { return is_member() && !enrolled_.stopped(); }

void DirectoryHost::enrollment_event(const EnrollmentEvent& event) {
  if (!process_) return;
  if (const auto* enrolled = std::get_if<Enrolled>(&event)) {
    process_->self = enrolled->self;
    process_->directory.enrolled(enrolled->self, enrolled_.enrollment().record());
  }
  if (const auto* serial = std::get_if<SerialTaken>(&event); serial != nullptr && serial->serial)
    setup_.got_serial(*serial->serial);
  const bool over = std::holds_alternative<Expelled>(event) || std::holds_alternative<Left>(event);
  if (!over) return;
  process_->directory.expelled();
  process_->self = NodeId{};
  take_outputs();
  if (!process_) return;
  process_->data.clear();
  process_->jobs.clear();
  process_->keeping.clear();
  process_->asked.clear();
  process_->gone.clear();
  if (std::holds_alternative<Left>(event)) process_.reset();
}

void DirectoryHost::wake() {
  if (!process_ || process_->woken) return;
  process_->woken = true;
  registry_.queue().after(0, [this, process = std::weak_ptr(process_)] {
    const auto same = process.lock();
    if (same == nullptr || same != process_) return;
    same->woken = false;
    run();
  });
}

void DirectoryHost::run() {
  if (!running() || enrolled_.stopped()) return;
  const RegistryMembers& members = enrolled_.enrollment().members();
  if (process_->self != NodeId{}) {
    NodesView view{.as_of = members.as_of(), .nodes = {}};
    for (const auto& [id, node] : members.nodes()) view.nodes.push_back(setup_.known(id, node.record));
    NodeRecord self;
    self.labels["host"] = name_;
    view.nodes.push_back(setup_.known(process_->self, self));
    for (KnownNode& node : view.nodes) {
      const std::optional<DrainOrder> order = members.drain(node.id);
      node.draining = order.has_value();
      node.forced = order && order->force;
    }
    std::ranges::sort(view.nodes, {}, &KnownNode::id);
    process_->directory.see(std::move(view));
  }
  int steps = 0;
  while (process_->directory.step() && steps < kMostSteps) {
    ++steps;
    take_outputs();
  }
  expect(steps < kMostSteps, "steps without end");
  take_outputs();
  if (process_) post_due();
}

void DirectoryHost::post_due() {
  const std::uint64_t due_us = process_->directory.next_due_us();
  const std::uint64_t turn = ++process_->due;
  if (due_us == UINT64_MAX) return;
  const Clock& clock = enrolled_.clock();
  if (process_->woken) return;  // the outputs have made work
  expect(due_us > clock.now_us(), "is due, and a step did nothing");
  if (due_us <= clock.now_us()) return;
  registry_.queue().at(static_cast<const test::DriftingClock&>(clock).virtual_us(due_us),
                       [this, turn, process = std::weak_ptr(process_)] {
                         const auto same = process.lock();
                         if (same != nullptr && same == process_ && same->due == turn) run();
                       });
}

void DirectoryHost::take_outputs() {
  std::vector<Outgoing> messages;
  process_->directory.take_messages(messages);
  for (const Outgoing& message : messages) send(message.to, 'M', write(message.message));
  std::vector<DirectoryEvent> events;
  process_->directory.poll(events);
  for (const DirectoryEvent& event : events) {
    if (!process_) return;
    take(event);
    setup_.saw(event);
  }
}

void DirectoryHost::take(const DirectoryEvent& event) {
  std::visit([this](const auto& each) { on(each); }, event);
}

template <class Other>
void DirectoryHost::on(const Other& other) {
  if constexpr (requires { other.ticket; }) ended(other.ticket);
}

void DirectoryHost::waits_for(Ticket ticket, std::uint64_t wait_us, const char* what) {
  process_->waits.emplace(ticket, Wait{.deadline_us = enrolled_.clock().now_us() + wait_us, .what = what});
  wake();
}

const char* DirectoryHost::overdue(std::uint64_t slack_us) const {
  if (enrolled_.behind()) return nullptr;
  const std::uint64_t now_us = enrolled_.clock().now_us();
  const auto late = std::ranges::find_if(process_->waits,
                                         [&](const auto& each) { return now_us > each.second.deadline_us + slack_us; });
  return late == process_->waits.end() ? nullptr : late->second.what;
}

void DirectoryHost::ended(Ticket ticket) {
  if (ticket == Ticket{}) return;
  expect(process_->waits.erase(ticket) == 1, "a ticket ended twice");
}

void DirectoryHost::forget(Serial serial) {
  Process& process = *process_;
  std::erase_if(process.data, [&](const auto& each) { return each.first.first == serial; });
  std::erase_if(process.lost, [&](const auto& each) { return each.first == serial; });
  std::erase_if(process.jobs, [&](const auto& each) { return each.second.serial == serial; });
  std::erase_if(process.keeping, [&](const auto& each) { return each.second.wanted.serial == serial; });
  std::erase_if(process.asked, [&](const auto& each) { return each.first.first == serial; });
  std::erase_if(process.gone, [&](const auto& each) { return each.first == serial; });
}

void DirectoryHost::on(const CloseEnded& event) {
  ended(event.ticket);
  const bool closed = event.status || event.status.error().status == VMEM_ERROR_TIMEOUT;
  if (closed || process_->directory.participant(event.serial) == nullptr) forget(event.serial);
}

void DirectoryHost::put(Serial serial, std::uint32_t page) { process_->data[{serial, page}] = bytes_of(serial, page); }

bool DirectoryHost::has(Serial serial, std::uint32_t page) const {
  if (process_ == nullptr) return false;
  return process_->data.contains({serial, page}) || std::ranges::any_of(process_->jobs, [&](const auto& each) {
           return each.second.landed && each.second.serial == serial && each.second.page == page;
         });
}

void DirectoryHost::evict(Serial serial, std::uint32_t page) {
  const Participant* const part = process_->directory.participant(serial);
  if (part == nullptr) return;
  const bool dropped = setup_.config.keeps_copies ? process_->directory.drop(serial, {.first = page, .count = 1})
                                                  : part->have(page) != Have::kept;
  if (dropped) process_->data.erase({serial, page});
}

void DirectoryHost::lose(Serial serial, std::uint32_t page) {
  const Participant* const part = process_->directory.participant(serial);
  if (part == nullptr || part->have(page) != Have::kept || process_->data.erase({serial, page}) == 0) return;
  process_->lost.insert({serial, page});
  process_->directory.missing(serial, {{.first = page, .count = 1}}, process_->self);
  wake();
}

bool DirectoryHost::has_lost(Serial serial, std::uint32_t page) const {
  return process_ != nullptr && process_->lost.contains({serial, page});
}

void DirectoryHost::read(Serial serial, std::uint32_t page, std::uint64_t wait_us) {
  if (has(serial, page)) return;
  const Ticket ticket = process_->directory.want(serial, {.first = page, .count = 1}, wait_us);
  process_->readings[ticket] = {.serial = serial, .page = page, .deadline_us = enrolled_.clock().now_us() + wait_us};
  waits_for(ticket, wait_us, "want");
}

void DirectoryHost::on(const Answered& answered) {
  const auto reading = process_->readings.find(answered.ticket);
  if (reading == process_->readings.end()) return;
  if (answered.run.state == PageState::free) ++counts.free;
  if (answered.run.state == PageState::lost) ++counts.lost;
  if (answered.run.state != PageState::published) return;
  // The mover said so before it asked for the page.
  say_gone({answered.serial, answered.run.pages.first});
  start_job({.serial = answered.serial,
             .page = answered.run.pages.first,
             .fetch = answered.fetch,
             .sources = answered.run.nodes,
             .deadline_us = reading->second.deadline_us});
}

void DirectoryHost::on(const WantEnded& event) {
  process_->readings.erase(event.ticket);
  if (!event.status && event.status.error().status == VMEM_ERROR_TIMEOUT) ++counts.late;
  ended(event.ticket);
}

void DirectoryHost::on(const KeepWanted& wanted) {
  const std::uint64_t turn = ++process_->last_keep;
  process_->keeping[turn] = {.wanted = wanted, .jobs = {}};
  for (const Run& run : wanted.pages)
    for (std::uint32_t page = run.first; page < run.end(); ++page)
      start_job({.serial = wanted.serial,
                 .page = page,
                 .fetch = wanted.fetch,
                 .sources = wanted.sources,
                 .keep = turn,
                 .deadline_us = enrolled_.clock().now_us() + 4'000'000});
}

void DirectoryHost::start_job(Job job) {
  const std::uint64_t turn = ++process_->last_job;
  if (job.keep != 0) process_->keeping[job.keep].jobs.insert(turn);
  process_->jobs[turn] = std::move(job);
  ask_next(turn);
}

void DirectoryHost::ask_next(std::uint64_t turn) {
  const auto found = process_->jobs.find(turn);
  if (found == process_->jobs.end()) return;
  Job& job = found->second;
  if (job.landed) return;
  const bool late = enrolled_.clock().now_us() >= job.deadline_us;
  if (late || job.next >= job.sources.size()) return finish_job(turn, false);
  const std::size_t asked = ++job.next;
  std::string rest;
  put_number(rest, static_cast<std::uint64_t>(job.serial));
  put_number(rest, job.page);
  put_number(rest, turn);
  send(job.sources[asked - 1], 'F', rest);
  registry_.queue().after(kSourceUs, [this, turn, asked, process = std::weak_ptr(process_)] {
    const auto same = process.lock();
    if (same == nullptr || same != process_ || enrolled_.stopped()) return;
    const auto still = same->jobs.find(turn);
    if (still == same->jobs.end() || still->second.next != asked || still->second.landed) return;
    same->directory.missing(still->second.serial, {{.first = still->second.page, .count = 1}},
                            still->second.sources[asked - 1]);
    ask_next(turn);
    wake();
  });
}

void DirectoryHost::finish_job(std::uint64_t turn, bool got) {
  Process& process = *process_;
  const Job job = process.jobs.at(turn);
  process.jobs.erase(turn);
  for (const Asked& asked : std::exchange(process.asked[{job.serial, job.page}], {}))
    serve(asked.node, job.serial, job.page, asked.job);
  if (const auto keeping = process.keeping.find(job.keep); keeping != process.keeping.end()) {
    keeping->second.jobs.erase(turn);
    if (keeping->second.jobs.empty()) {
      counts.kept += got ? 1 : 0;
      process.directory.kept(keeping->second.wanted, directory::KeepAnswer::yes);
      process.keeping.erase(keeping);
    }
  }
  const std::uint64_t now_us = enrolled_.clock().now_us();
  if (job.keep == 0 && !got && now_us + kMostRoundsUs < job.deadline_us)
    registry_.queue().after(kMostRoundsUs, [this, job, process = std::weak_ptr(process_)] {
      const auto same = process.lock();
      const std::uint64_t later_us = enrolled_.clock().now_us();
      if (same == nullptr || same != process_ || enrolled_.stopped() || later_us >= job.deadline_us) return;
      if (same->directory.participant(job.serial) != nullptr) read(job.serial, job.page, job.deadline_us - later_us);
    });
  wake();
}

void DirectoryHost::got(std::uint64_t turn, NodeId from, bool has, std::uint64_t bytes) {
  const auto found = process_->jobs.find(turn);
  if (found == process_->jobs.end() || found->second.landed) return;
  const Job job = found->second;
  const bool awaited = job.next > 0 && job.sources[job.next - 1] == from;
  if (!has) {
    process_->directory.missing(job.serial, {{.first = job.page, .count = 1}}, from);
    if (awaited) ask_next(turn);
    return wake();
  }
  expect(bytes == bytes_of(job.serial, job.page), "wrong bytes came");
  const bool taken = process_->directory.arrived(job.serial, job.page, job.fetch);
  counts.read += taken ? 1 : 0;
  counts.refused += taken ? 0 : 1;
  if (!taken) return finish_job(turn, false);
  found->second.landed = true;
  if (setup_.config.keeps_copies) return take(turn);
  later([this, turn] { take(turn); });
}

void DirectoryHost::take(std::uint64_t turn) {
  const auto found = process_->jobs.find(turn);
  if (found == process_->jobs.end()) return;
  put(found->second.serial, found->second.page);
  finish_job(turn, true);
}

void DirectoryHost::say_gone(const Page& page) {
  if (process_->gone.erase(page) == 0) return;
  expect(!has(page.first, page.second),
         fmt::format("denies page {} of region {}, which it has", page.second, static_cast<std::uint64_t>(page.first)));
  process_->directory.missing(page.first, {{.first = page.second, .count = 1}}, process_->self);
  wake();
}

// What a stopped process was to do, it does when it goes on.
void DirectoryHost::later(std::function<void()> what) {
  const std::uint64_t after_us = process_->random() % 4 == 0 ? process_->random() % kMostThreadsUs : 0;
  registry_.queue().after(after_us, [this, what = std::move(what), process = std::weak_ptr(process_)] {
    const auto same = process.lock();
    if (same != nullptr && same == process_ && !enrolled_.stopped()) what();
  });
}

void DirectoryHost::serve(NodeId from, Serial serial, std::uint32_t page, std::uint64_t job) {
  const auto data = process_->data.find({serial, page});
  const bool here = data != process_->data.end();
  if (!here) {
    for (const auto& [turn, each] : process_->jobs)
      if (each.serial == serial && each.page == page) {
        process_->asked[{serial, page}].push_back({.node = from, .job = job});
        return;
      }
  }
  // A program finds out what it has dropped when it is asked for it.
  if (!here && !setup_.config.keeps_copies && process_->gone.emplace(serial, page).second)
    later([this, page = Page{serial, page}] { say_gone(page); });
  std::string rest;
  put_number(rest, job);
  put_number(rest, here ? 1 : 0);
  put_number(rest, here ? data->second : 0);
  counts.served += here ? 1 : 0;
  send(from, 'D', rest);
}

void DirectoryHost::send(NodeId to, char kind, const std::string& rest) {
  const std::optional<Address> address = setup_.address_of(to);
  if (!address || process_->self == NodeId{}) return;
  std::string message(1, kind);
  put_number(message, number(process_->self));
  put_number(message, number(to));
  network_.send(setup_.address, *address, message + rest);
}

void DirectoryHost::receive(Address, const std::string& message) {
  if (!acts()) return;  // what comes to a stopped process is lost
  std::string_view rest = std::string_view(message).substr(1);
  const NodeId from{take_number(rest)}, to{take_number(rest)};
  if (to != process_->self) return;
  if (message[0] == 'M') {
    process_->directory.deliver({.node = from, .tenant = setup_.tenant_of(from)}, rest);
  } else if (message[0] == 'F') {
    const Serial serial{take_number(rest)};
    const auto page = std::uint32_t(take_number(rest));
    serve(from, serial, page, take_number(rest));
  } else {
    const std::uint64_t job = take_number(rest);
    const bool has = take_number(rest) == 1;
    got(job, from, has, take_number(rest));
  }
  wake();
}

}  // namespace vmem::cluster::simulator
