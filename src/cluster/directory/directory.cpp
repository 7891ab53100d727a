#include "cluster/directory/directory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <type_traits>
#include <utility>

#include "cluster/directory/region_errors.hpp"

namespace vmem::cluster::directory {
namespace {

// Any wait may be asked for, also for ever.
std::uint64_t later(std::uint64_t now_us, std::uint64_t wait_us) {
  return now_us + std::min(wait_us, UINT64_MAX - now_us);
}

template <class Number>
Number next(Number& last) {
  return last = Number{static_cast<std::underlying_type_t<Number>>(last) + 1};
}

template <class Part>
Part* find(const std::map<Serial, std::unique_ptr<Part>>& parts, Serial serial) {
  const auto found = parts.find(serial);
  return found == parts.end() ? nullptr : found->second.get();
}

}  // namespace

Directory::Directory(Registry& registry, const Clock& clock, Setup setup)
    : clock_(clock),
      setup_(std::move(setup)),
      calls_(registry, clock),
      context_{.self = {},
               .self_record = {},
               .view = view_,
               .index = index_,
               .config = setup_.config,
               .random = setup_.random,
               .fenced = setup_.fenced,
               .unix_s = setup_.unix_s},
      poll_(calls_, setup_.config, index_),
      takeover_(calls_, context_,
                [this](const RegionRecord& region) { return setup_.takes_over || requests_.removes(region); }),
      publishing_(calls_, context_, poll_),
      requests_(context_, setup_.no_path) {}

void Directory::enrolled(NodeId self, Revision record) {
  context_.self = self;
  context_.self_record = record;
  poll_.start();
}

void Directory::expelled() {
  const Error why = not_a_member();
  for (const auto& [serial, home] : homes_) home->end(out_);
  for (const auto& [serial, participant] : participants_) {
    const bool is_open = participant->stage() == Participant::Stage::open && !participant->is_invited();
    if (std::optional<Error> loss = participant->end(why, out_); loss && is_open)
      losses_.insert_or_assign(serial, *std::move(loss));
    last_fetch_ = std::max(last_fetch_, participant->last_fetch());
  }
  homes_.clear();
  participants_.clear();
  publishing_.end(why, out_);
  requests_.end(why, out_);
  takeover_.stop();
  poll_.stop();
  own_.clear();
  out_.messages.clear();
  if (departure_ && !departure_->over)
    out_.events.emplace_back(LeaveEnded{.ticket = departure_->ticket, .status = std::unexpected(why)});
  departure_.reset();
  context_.self = NodeId{};
}

void Directory::see(NodesView view) {
  if (view.as_of < view_.as_of) return;
  const bool others = view.nodes != view_.nodes;
  view_ = std::move(view);
  takeover_.look();
  if (!others) return;
  for (const auto& [serial, home] : homes_) home->view_changed();
}

const HomeDirectory* Directory::home(Serial serial) const { return find(homes_, serial); }
const Participant* Directory::participant(Serial serial) const { return find(participants_, serial); }

Ticket Directory::publish(Publication what, std::uint64_t wait_us) {
  const Ticket ticket = next(last_ticket_);
  RegionRecord region;
  region.serial = what.serial;
  region.name = what.name;
  region.key = what.key;
  region.first_granule = what.first_granule;
  region.granules = what.granules;
  region.page_bytes = what.page_bytes;
  region.bytes = what.bytes;
  region.pages = what.page_bytes == 0 ? 0 : std::uint32_t((what.bytes + what.page_bytes - 1) / what.page_bytes);
  region.tenant = setup_.tenant;
  region.publisher = region.home = context_.self;
  region.copies = what.copies;
  region.expires_s = what.expires_s;
  region.readers = what.readers;
  const KnownNode* const self = view_.find(context_.self);
  region.participants[0] = {
      .node = context_.self, .session = next(last_session_), .daemon = self != nullptr && self->daemon};
  Status right = context_.is_member() ? check_name(what.name) : std::unexpected(not_a_member());
  if (right) right = check_region(region);
  if (right) right = check_written(region, what.written);
  if (!right) {
    out_.events.emplace_back(PublishEnded{.ticket = ticket, .serial = std::unexpected(right.error())});
    return ticket;
  }
  const std::uint64_t now_us = clock_.now_us();
  publishing_.publish({.ticket = ticket,
                       .region = std::move(region),
                       .written = std::move(what.written),
                       .asked_us = now_us,
                       .deadline_us = later(now_us, wait_us)});
  poll_.poke();
  return ticket;
}

Ticket Directory::open(const std::string& name, std::uint64_t wait_us) {
  const Ticket ticket = next(last_ticket_);
  const std::uint64_t now_us = clock_.now_us();
  requests_.ask(RegionRequest::Kind::open, ticket, name, now_us, later(now_us, wait_us), out_);
  poll_.poke();
  return ticket;
}

Ticket Directory::remove(const std::string& name, std::uint64_t wait_us) {
  const Ticket ticket = next(last_ticket_);
  const std::uint64_t now_us = clock_.now_us();
  requests_.ask(RegionRequest::Kind::remove, ticket, name, now_us, later(now_us, wait_us), out_);
  takeover_.look();
  poll_.poke();
  return ticket;
}

Ticket Directory::want(Serial serial, Run pages, std::uint64_t wait_us) {
  const Ticket ticket = next(last_ticket_);
  Participant* const participant = find(participants_, serial);
  if (participant != nullptr)
    participant->want(ticket, pages, later(clock_.now_us(), wait_us), out_);
  else
    out_.events.emplace_back(
        WantEnded{.ticket = ticket, .status = std::unexpected(not_open(serial, ": open it first"))});
  return ticket;
}

Ticket Directory::close(Serial serial, std::uint64_t wait_us) {
  const Ticket ticket = next(last_ticket_);
  Participant* const participant = find(participants_, serial);
  const std::uint64_t now_us = clock_.now_us();
  const bool open = participant != nullptr && participant->stage() == Participant::Stage::open;
  const auto loss = losses_.extract(serial);
  if (open) {
    participant->close(ticket, later(now_us, wait_us), now_us);
    return ticket;
  }
  const Error why = loss ? loss.mapped() : not_open(serial, ", or is being closed");
  out_.events.emplace_back(CloseEnded{.ticket = ticket, .serial = serial, .status = std::unexpected(why), .lost = {}});
  return ticket;
}

Ticket Directory::leave(std::uint64_t wait_us) {
  const Ticket ticket = next(last_ticket_);
  if (departure_ || !context_.is_member()) {
    const Status refusal = fail(VMEM_ERROR_IN_USE, "this node was to leave, and is leaving already, or is no member");
    out_.events.emplace_back(LeaveEnded{.ticket = ticket, .status = refusal});
    return ticket;
  }
  departure_ = Departure{.ticket = ticket, .deadline_us = later(clock_.now_us(), wait_us), .over = false};
  return ticket;
}

bool Directory::arrived(Serial serial, std::uint32_t page, Fetch fetch) {
  Participant* const participant = find(participants_, serial);
  return participant != nullptr && participant->arrived(page, fetch);
}

void Directory::missing(Serial serial, const Runs& pages, NodeId source) {
  if (Participant* const participant = find(participants_, serial)) participant->missing(pages, source, out_);
}

void Directory::kept(const KeepWanted& wanted, KeepAnswer answer) {
  if (Participant* const participant = find(participants_, wanted.serial)) participant->kept(wanted, answer, out_);
}

bool Directory::drop(Serial serial, const Run& pages) {
  Participant* const participant = find(participants_, serial);
  return participant == nullptr || participant->drop(pages);
}

void Directory::deliver(const Sender& from, std::string_view bytes) {
  if (!context_.is_member() || setup_.fenced()) return;
  if (const Result<Message> message = parse(bytes)) dispatch(from, *message);
}

void Directory::dispatch(const Sender& from, const Message& message) {
  if (is_for_home(message.body)) return to_home(from, message);
  to_participant(from, message);
}

void Directory::refuse_old(const Sender& from, const Message& message, Term term, NodeId home) {
  if (message.term > term) return poll_.poke();
  if (message.term == term) return;
  out_.messages.push_back(
      {.to = from.node,
       .message = {.serial = message.serial, .term = term, .session = message.session, .body = Stale{.home = home}}});
}

void Directory::to_home(const Sender& from, const Message& message) {
  const auto home = homes_.find(message.serial);
  if (home != homes_.end()) return home->second->handle(from, message, clock_.now_us(), out_);
  const StoredRegion* const region = index_.find(message.serial);
  if (region == nullptr) return poll_.poke();
  refuse_old(from, message, region->record.term, region->record.home);
}

void Directory::to_participant(const Sender& from, const Message& message) {
  if (message.session == Session{}) {
    const StoredRegion* const region = index_.find(message.serial);
    if (region == nullptr || region->record.home != from.node) return poll_.poke();
    if (std::holds_alternative<Removed>(message.body)) requests_.removed(message.serial, out_);
    if (std::holds_alternative<RefusedBy>(message.body)) requests_.refused(message.serial, out_);
    return;
  }
  // What it says about the home counts as a hint: the record is read.
  if (std::holds_alternative<Stale>(message.body)) {
    if (const auto home = homes_.find(message.serial); home != homes_.end())
      home->second->handle(from, message, clock_.now_us(), out_);
    return poll_.poke();
  }
  Participant* const participant = find(participants_, message.serial);
  if (participant == nullptr) return called(message);
  if (message.term != participant->term())
    return refuse_old(from, message, participant->term(), participant->region().home);
  if (from.node != participant->region().home) return;
  participant->handle(message, clock_.now_us(), out_);
  // The participant is over once the record is read without it.
  if (std::holds_alternative<Closed>(message.body)) poll_.poke();
}

// A home speaks to a participant that this node does not have.
void Directory::called(const Message& message) {
  const StoredRegion* const region = index_.find(message.serial);
  if (region != nullptr && region->record.place_of(context_.self, message.session))
    join(region->record);
  else
    poll_.poke();
}

// A region that this node opened before, or that a home wants copies of here.
void Directory::join(const RegionRecord& region) {
  const std::optional<std::uint32_t> place = region.place_of(context_.self);
  if (!place || publishing_.expects(region.serial)) return;
  if (const Participant* const earlier = participant(region.serial))
    last_fetch_ = std::max(last_fetch_, earlier->last_fetch());
  const Session session = region.participants[*place].session;
  auto made = std::make_unique<Participant>(
      setup_.config,
      Participant::Setup{
          .region = region, .self = context_.self, .tenant = setup_.tenant, .session = session, .before = last_fetch_});
  const bool stays = made->is_invited() && !departure_ && !region.removed;
  if (!stays) made->close(Ticket{}, 0, clock_.now_us());
  participants_.insert_or_assign(region.serial, std::move(made));
}

void Directory::changed(const StoredRegion& region) {
  const Serial serial = region.record.serial;
  if (!context_.is_member() || publishing_.expects(serial)) return;
  if (Participant* const participant = find(participants_, serial)) participant->learn(&region.record, out_);
  const Participant* const participant = find(participants_, serial);
  if (participant == nullptr || participant->stage() == Participant::Stage::over) join(region.record);
  const auto home = homes_.find(serial);
  if (home == homes_.end()) return;
  const RegionRecord& known = home->second->desk().record();
  if (known.home != region.record.home || known.term != region.record.term) home->second->verify();
}

// Records may name this node without its doing: another home handed over, or a commit was done
// late.
void Directory::adopt() {
  if (!context_.is_member() || (departure_ && departure_->over)) return;
  for (const auto& [serial, region] : index_.regions()) {
    const bool abandoned = publishing_.is_abandoned(serial);
    if (abandoned && region.record.home != context_.self && !region.record.removed)
      out_.messages.push_back(
          {.to = region.record.home,
           .message = {.serial = serial, .term = region.record.term, .session = {}, .body = Remove{}}});
    if (region.record.home != context_.self || homes_.contains(serial) || publishing_.expects(serial)) continue;
    const auto made = homes_.emplace(serial, std::make_unique<HomeDirectory>(calls_, context_, region)).first;
    if (abandoned) made->second->remove();
  }
}

void Directory::erased(const RegionRecord& region) {
  if (Participant* const participant = find(participants_, region.serial)) participant->learn(nullptr, out_);
  if (const auto home = homes_.find(region.serial); home != homes_.end()) home->second->verify();
  requests_.removed(region.serial, out_);
  const bool was_given = !publishing_.is_abandoned(region.serial);  // its addresses, to others
  publishing_.forget(region.serial);
  if (was_given) out_.events.emplace_back(RangeFreed{region});
}

bool Directory::step_records(std::uint64_t now_us) {
  RegionIndex::Changes changes;
  const bool moved = poll_.step(now_us, changes);
  for (const Serial serial : changes.changed)
    if (const StoredRegion* const region = index_.find(serial)) changed(*region);
  for (const RegionRecord& region : changes.erased) erased(region);
  if (!moved) return false;
  takeover_.look();  // also after a reading of names, by which removals find their regions
  adopt();
  return true;
}

bool Directory::step_takeover(std::uint64_t now_us) {
  if (setup_.fenced() || departure_) return false;
  const bool moved = takeover_.step(now_us);
  if (const std::optional<StoredRegion> won = takeover_.take_won(); won && index_.put(*won)) {
    changed(*won);
    adopt();
  }
  if (takeover_.take_unsure()) poll_.poke();
  return moved;
}

bool Directory::step_publishing(std::uint64_t now_us) {
  const bool moved = publishing_.step(now_us, out_);
  const std::optional<PublishDesk::Done> done = publishing_.take_done();
  if (!done) return moved;
  const RegionRecord& record = done->region.record;
  index_.put(done->region);
  auto participant =
      std::make_unique<Participant>(setup_.config, Participant::Setup{.region = record,
                                                                      .self = context_.self,
                                                                      .tenant = setup_.tenant,
                                                                      .session = record.participants[0].session,
                                                                      .before = last_fetch_});
  participant->begin(done->order.written);
  participants_.insert_or_assign(record.serial, std::move(participant));
  auto home = std::make_unique<HomeDirectory>(calls_, context_, done->region);
  home->begin(done->order.written);
  home->await_copies(done->order.ticket, done->order.deadline_us);
  homes_.insert_or_assign(record.serial, std::move(home));
  return true;
}

bool Directory::open_now(const RegionRequest& request, const RegionRecord& region) {
  if (departure_ || !context_.is_member() || publishing_.expects(region.serial)) return false;
  if (const Participant* const there = participant(region.serial)) {
    if (there->stage() != Participant::Stage::open) return false;
    out_.events.emplace_back(OpenEnded{.ticket = request.ticket, .serial = region.serial});
    return true;
  }
  const std::optional<std::uint32_t> place = region.place_of(context_.self);
  const bool invited = place && is_invitation(region.participants[*place].session);
  Participant::Setup setup{.region = region,
                           .self = context_.self,
                           .tenant = setup_.tenant,
                           .session = invited ? region.participants[*place].session : next(last_session_),
                           .ticket = request.ticket,
                           .asked_us = request.asked_us,
                           .deadline_us = request.deadline_us,
                           .no_path = setup_.no_path,
                           .before = last_fetch_};
  participants_.emplace(region.serial, std::make_unique<Participant>(setup_.config, std::move(setup)));
  return true;
}

void Directory::take_record(const RecordDesk& desk) {
  const Serial serial = desk.record().serial;
  if (desk.seen_at() == Revision{}) return;
  if (desk.seen() && index_.put(*desk.seen())) {
    if (Participant* const participant = find(participants_, serial)) participant->learn(&desk.seen()->record, out_);
  }
  if (desk.seen()) return;
  const StoredRegion* const known = index_.find(serial);
  if (known == nullptr) return;
  const RegionRecord region = known->record;
  if (index_.erase(serial, desk.seen_at())) erased(region);
}

bool Directory::step_homes(std::uint64_t now_us) {
  bool moved = false;
  for (auto each = homes_.begin(); each != homes_.end();) {
    HomeDirectory& home = *each->second;
    moved |= home.step(now_us, out_);
    if (home.over()) home.end(out_);
    take_record(home.desk());
    each = home.over() ? homes_.erase(each) : std::next(each);
  }
  return moved;
}

bool Directory::step_participants(std::uint64_t now_us) {
  bool moved = false;
  for (auto each = participants_.begin(); each != participants_.end();) {
    moved |= each->second->step(now_us, out_);
    const bool over = each->second->stage() == Participant::Stage::over;
    moved |= over;  // a request may have waited for it
    if (over) last_fetch_ = std::max(last_fetch_, each->second->last_fetch());
    each = over ? participants_.erase(each) : std::next(each);
  }
  return moved;
}

bool Directory::step_departure(std::uint64_t now_us) {
  if (!departure_ || departure_->over) return false;
  const std::uint64_t deadline_us = departure_->deadline_us;
  const bool late = now_us >= deadline_us;
  bool moved = false;
  for (const auto& [serial, participant] : participants_) {
    const bool stays =
        participant->stage() == Participant::Stage::open || participant->stage() == Participant::Stage::opening;
    const std::uint64_t left_us = late ? 0 : deadline_us - now_us;
    if (stays) participant->close(Ticket{}, deadline_us - left_us / 4, now_us);
    moved |= stays;
  }
  for (const auto& [serial, home] : homes_)
    if (!participants_.contains(serial)) moved |= home->hand_over();
  const bool done = homes_.empty() && participants_.empty();
  if (!done && !late) return moved;
  departure_->over = true;
  Status status;
  if (!done)
    status = fail(VMEM_ERROR_TIMEOUT,
                  fmt::format("this node was to leave, and {} homes and {} regions were not given up in time; other "
                              "nodes take them over when its lease ends",
                              homes_.size(), participants_.size()));
  out_.events.emplace_back(LeaveEnded{.ticket = departure_->ticket, .status = std::move(status)});
  return true;
}

// What this node says to itself goes no way round; a fenced node says nothing to others.
void Directory::route() {
  for (Outgoing& message : std::exchange(out_.messages, {})) {
    if (message.to == context_.self)
      own_.push_back(std::move(message.message));
    else if (message.to != NodeId{} && !setup_.fenced())
      outgoing_.push_back(std::move(message));
  }
}

bool Directory::step_own_messages() {
  route();
  if (own_.empty()) return false;
  const Sender self{.node = context_.self, .tenant = setup_.tenant};
  for (const Message& message : std::exchange(own_, {}))
    if (!setup_.fenced()) dispatch(self, message);
  route();
  return true;
}

bool Directory::step() {
  const std::uint64_t now_us = clock_.now_us();
  bool moved = calls_.poll();
  moved |= step_records(now_us);
  if (context_.is_member()) moved |= step_takeover(now_us);
  moved |= step_publishing(now_us);
  moved |= requests_.step(
      now_us, poll_.fresh_us(),
      [this](const RegionRequest& request, const RegionRecord& region) { return open_now(request, region); }, out_);
  moved |= step_homes(now_us);
  moved |= step_participants(now_us);
  moved |= step_departure(now_us);
  return step_own_messages() || moved;
}

std::uint64_t Directory::next_due_us() const {
  std::uint64_t due_us = std::min({poll_.due_us(), publishing_.due_us(), requests_.due_us()});
  if (!own_.empty() || !out_.messages.empty()) return 0;
  if (context_.is_member() && !departure_ && !setup_.fenced()) due_us = std::min(due_us, takeover_.due_us());
  for (const auto& [serial, home] : homes_) due_us = std::min(due_us, home->due_us());
  for (const auto& [serial, participant] : participants_) due_us = std::min(due_us, participant->due_us());
  if (departure_ && !departure_->over) due_us = std::min(due_us, departure_->deadline_us);
  return due_us;
}

void Directory::take_messages(std::vector<Outgoing>& messages) {
  std::ranges::move(outgoing_, std::back_inserter(messages));
  outgoing_.clear();
}

void Directory::poll(std::vector<DirectoryEvent>& events) {
  std::ranges::move(out_.events, std::back_inserter(events));
  out_.events.clear();
}

}  // namespace vmem::cluster::directory
