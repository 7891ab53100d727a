#include "cluster/directory/home_directory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cluster/directory/region_errors.hpp"

namespace vmem::cluster::directory {
namespace {

std::uint64_t number(NodeId id) { return static_cast<std::uint64_t>(id); }

// Whether the session is an earlier one of the same node than the one that is known, as far as its
// home can tell: a node that was invited opens with that session, so another one is old.
bool is_older(Session session, Session known) {
  if (is_invitation(known) != is_invitation(session)) return is_invitation(known);
  return session < known;
}

RecordDesk::Edit removal_of(NodeId node, Session session) {
  return [node, session](RegionRecord& record) {
    if (const std::optional<std::uint32_t> place = record.place_of(node, session)) record.participants[*place] = {};
  };
}

RecordDesk::Edit admission_of(RegionRecord::Participant who) {
  return [who](RegionRecord& record) {
    std::optional<std::uint32_t> place = record.place_of(who.node);
    if (place && is_older(who.session, record.participants[*place].session)) return;
    if (!place) place = record.free_place();
    if (place) record.participants[*place] = who;
  };
}

// Who is to be home after this node: rather who stays, who takes part, and daemons.
NodeId successor(const HomeContext& context, const HomeTable& table) {
  const Places going = table.going(context.view);
  NodeId best{};
  int best_rank = -1;
  for (const KnownNode& node : context.view.nodes) {
    const std::optional<std::uint32_t> place = table.place_of(node.id);
    const bool stays = !node.draining && (!place || (going & place_bit(*place)) == 0);
    const int rank = (stays ? 4 : 0) + (place ? 2 : 0) + (node.daemon ? 1 : 0);
    if (node.id == context.self || rank <= best_rank) continue;
    best = node.id;
    best_rank = rank;
  }
  return best;
}

// The FREE pages from one on, as many as a message takes.
Opened opened_of(const HomePages& pages, std::uint32_t place, std::uint32_t from) {
  Opened opened{.place = place, .from = from, .to = from, .free = {}};
  const std::uint64_t end = std::min<std::uint64_t>(pages.size(), std::uint64_t{from} + kMostRange);
  for (; opened.to < end; ++opened.to) {
    if (pages[opened.to].state != HomeState::free) continue;
    const bool extends = !opened.free.empty() && opened.free.back().end() == opened.to;
    if (!extends && opened.free.size() == kMostRuns) break;
    append(opened.free, opened.to);
  }
  return opened;
}

LeaveDone leave_done_of(const Runs& lost, std::uint32_t pages, std::uint32_t from) {
  LeaveDone done{.from = from, .to = pages, .lost = {}};
  for (auto each = std::ranges::upper_bound(lost, from, {}, &Run::end); each != lost.end(); ++each) {
    const Run& run = *each;
    if (done.lost.size() == kMostRuns) {
      done.to = run.first;
      break;
    }
    const std::uint32_t first = std::max(run.first, from);
    done.lost.push_back({.first = first, .count = std::uint32_t(run.end() - first)});
  }
  return done;
}

// An older view of the nodes may lack a daemon that has joined before the publication.
bool copies_are_impossible(const NodesView& view, const RecordDesk& desk) {
  return view.as_of >= desk.modified() && no_daemon_takes_copies(view, desk.record());
}

}  // namespace

HomeDirectory::HomeDirectory(RegistryCalls& calls, const HomeContext& context, StoredRegion region)
    : context_(context),
      desk_(calls, context.config, context.random, std::move(region)),
      pages_(desk_.record().pages),
      healer_(context, pages_, table_, desk_.record()),
      rebuild_(pages_),
      synced_(desk_.modified()) {
  table_.sync(desk_.record());
  rebuild_.begin(table_.all());
  end_rebuild();
}

void HomeDirectory::begin(const Runs& written) {
  rebuild_.begin(0);
  rebuilt_ = true;
  for (std::uint32_t page = 0; page < pages_.size(); ++page) pages_.set_free(page);
  for (const Run& run : written)
    for (std::uint32_t page = run.first; page < run.end(); ++page) pages_.add_keeper(page, 0);
}

void HomeDirectory::await_copies(Ticket ticket, std::uint64_t deadline_us) {
  publishing_ = Publishing{.ticket = ticket, .deadline_us = deadline_us};
}

void HomeDirectory::remove() {
  if (removing_ || desk_.record().removed) return;
  removing_ = true;
  desk_.change([](RegionRecord& record) { record.removed = true; });
}

bool HomeDirectory::hand_over() {
  if (handing_over_) return false;
  const NodeId next = successor(context_, table_);
  // Nobody would erase its record later.
  if (next == NodeId{} && (removing_ || desk_.record().removed)) return false;
  handing_over_ = true;
  if (next == NodeId{}) {
    over_ = true;
    return true;
  }
  desk_.change([next, self = context_.self](RegionRecord& record) {
    record.home = next;
    record.term = Term{static_cast<std::uint64_t>(record.term) + 1};
    if (const std::optional<std::uint32_t> place = record.place_of(self)) record.participants[*place] = {};
  });
  return true;
}

void HomeDirectory::say(NodeId to, Session session, Body body, Outbox& out) const {
  const RegionRecord& record = desk_.record();
  out.messages.push_back(
      {.to = to,
       .message = {.serial = record.serial, .term = record.term, .session = session, .body = std::move(body)}});
}

void HomeDirectory::handle(const Sender& from, const Message& message, std::uint64_t now_us, Outbox& out) {
  if (over() || context_.fenced()) return;
  if (message.term < desk_.record().term) return say(from.node, message.session, Stale{.home = context_.self}, out);
  if (message.term > desk_.record().term) return desk_.verify();
  const From whose{
      .sender = from, .session = message.session, .place = table_.find(from.node, message.session), .now_us = now_us};
  std::visit([&](const auto& body) { on(whose, body, out); }, message.body);
}

void HomeDirectory::on(const From& from, const Open& body, Outbox& out) {
  if (desk_.record().removed) return say(from.sender.node, from.session, RefusedBy{Refusal::removed}, out);
  if (removing_) return;  // it may not come to that: who opens asks again
  if (rebuilding()) return reopened(from);
  if (handing_over_) return;
  if (!from.place) return admit(from, body, out);
  say(from.sender.node, from.session, opened_of(pages_, *from.place, body.from), out);
}

// A node that opens anew has nothing of its earlier session, and will not report of it.
void HomeDirectory::reopened(const From& from) {
  const std::optional<std::uint32_t> place = table_.place_of(from.sender.node);
  if (!place || from.place || is_older(from.session, table_[*place].who.session)) return;
  rebuild_.not_awaited(*place);
  end_rebuild();
}

void HomeDirectory::admit(const From& from, const Open& body, Outbox& out) {
  const NodeId node = from.sender.node;
  const std::optional<std::uint32_t> place = table_.place_of(node);
  if (is_invitation(from.session) || from.session == Session{}) return;
  if (place && is_older(from.session, table_[*place].who.session)) return;
  if (!may_read(from.sender.tenant, desk_.record().tenant, desk_.record().readers))
    return say(node, from.session, RefusedBy{Refusal::tenant}, out);
  if (!place && !desk_.record().free_place()) return say(node, from.session, RefusedBy{Refusal::full}, out);
  const auto known = std::ranges::find(opens_, node, &Opening::node);
  if (known != opens_.end() && known->session >= from.session) return;
  if (known != opens_.end()) opens_.erase(known);
  opens_.push_back({.node = node, .session = from.session, .from = body.from});
  const KnownNode* const listed = context_.view.find(node);
  desk_.change(admission_of({.node = node, .session = from.session, .daemon = listed != nullptr && listed->daemon}));
}

void HomeDirectory::on(const From& from, const Close&, Outbox& out) {
  if (!from.place) return say(from.sender.node, from.session, Closed{}, out);
  if ((dropping_ & place_bit(*from.place)) != 0) return;
  dropping_ |= place_bit(*from.place);
  desk_.change(removal_of(from.sender.node, from.session));
}

SourceRun HomeDirectory::source_of(std::uint32_t page, std::uint32_t reader) {
  SourceRun run{.pages = {.first = page, .count = 1}, .state = PageState::free, .nodes = {}};
  if (pages_[page].state == HomeState::lost) run.state = PageState::lost;
  if (pages_[page].state != HomeState::held && pages_[page].state != HomeState::unkept) return run;
  run.state = PageState::published;
  for (const std::uint32_t place : pages_.sources(page, reader, table_.left()))
    run.nodes.push_back(table_[place].who.node);
  if (run.nodes.empty())
    healer_.verify(page, reader);  // the only one that has it asks for its own page
  else
    pages_.come(page, reader);
  return run;
}

void HomeDirectory::on(const From& from, const Want& body, Outbox& out) {
  if (desk_.record().removed) return say(from.sender.node, from.session, RefusedBy{Refusal::removed}, out);
  if (rebuilding()) return;
  if (!from.place) return say(from.sender.node, from.session, Closed{}, out);
  if (!pages_.contains(body.pages)) return;
  std::vector<SourceRun> runs;
  const auto send = [&] {
    if (runs.empty()) return;
    say(from.sender.node, from.session, Sources{.round = healer_.round(), .runs = std::exchange(runs, {})}, out);
  };
  for (std::uint32_t page = body.pages.first; page < body.pages.end(); ++page) {
    if (pages_[page].state == HomeState::seeking) continue;
    SourceRun next = source_of(page, *from.place);
    if (next.state == PageState::published && next.nodes.empty()) continue;
    const bool extends = !runs.empty() && runs.back().pages.end() == page && runs.back().state == next.state &&
                         runs.back().nodes == next.nodes;
    if (extends) {
      ++runs.back().pages.count;
      continue;
    }
    if (runs.size() == kMostRuns) send();
    runs.push_back(std::move(next));
  }
  send();
}

void HomeDirectory::on(const From& from, const Landed& body, Outbox&) {
  if (rebuilding() || !from.place) return;
  for (const Run& run : body.pages) {
    if (!pages_.contains(run)) return;
    for (std::uint32_t page = run.first; page < run.end(); ++page) {
      if (pages_[page].state == HomeState::free) continue;
      healer_.released(page, *from.place, body.round);
      pages_.add_cacher(page, *from.place);
      healer_.has_copy(page);
      if (pages_[page].state == HomeState::lost) healer_.seek(page);
    }
  }
}

void HomeDirectory::missing(std::uint32_t page, const Missing& body, const From& from) {
  const std::optional<std::uint32_t> place = table_.place_of(body.source);
  if (!place) return;
  if (place == from.place) healer_.released(page, *place, body.round);
  // Who is asked about a page that is sought may have answered after this was said.
  if ((pages_[page].keepers & place_bit(*place)) != 0)
    healer_.verify(page, *place);
  else if (pages_[page].state != HomeState::seeking)
    healer_.not_there(page, *place);
}

void HomeDirectory::on(const From& from, const Missing& body, Outbox&) {
  if (rebuilding() || !from.place) return;
  for (const Run& run : body.pages) {
    if (!pages_.contains(run)) return;
    for (std::uint32_t page = run.first; page < run.end(); ++page)
      if (pages_[page].state != HomeState::free) missing(page, body, from);
  }
}

void HomeDirectory::on(const From& from, const Kept& body, Outbox&) {
  if (rebuilding() || !from.place) return;
  const RegionRecord& record = desk_.record();
  if (body.answer == KeepAnswer::no && !may_read(from.sender.tenant, record.tenant, record.readers))
    unfit_ = fmt::format(
        "node {} is of the tenant '{}', which may not read the region: publish with it among the "
        "readers, or have daemons of the tenant '{}'",
        number(from.sender.node), from.sender.tenant, record.tenant);
  for (const Run& run : body.pages) {
    if (!pages_.contains(run)) return;
    for (std::uint32_t page = run.first; page < run.end(); ++page)
      if (pages_[page].state != HomeState::free)
        healer_.answer(page, *from.place, body.round, body.answer, from.now_us);
  }
}

void HomeDirectory::on(const From& from, const Report& body, Outbox&) {
  if (from.place && rebuilding() && rebuild_.take(*from.place, body)) end_rebuild();
}

// Once every report is here, or is not awaited any more.
void HomeDirectory::end_rebuild() {
  if (rebuilt_ || rebuild_.going_on()) return;
  rebuilt_ = true;
  for (std::uint32_t page = 0; page < pages_.size(); ++page)
    if (pages_[page].state == HomeState::lost) healer_.seek(page);
}

// A participant may go when every page that it keeps has a keeper that stays, when no daemon could
// become one, or when its time is nearly up.
void HomeDirectory::try_to_let_go(std::uint32_t place, std::uint64_t now_us) {
  const bool hope =
      healer_.is_copying() || std::ranges::any_of(context_.view.nodes, [&](const KnownNode& node) {
        const std::optional<std::uint32_t> at = table_.place_of(node.id);
        return node.daemon && !node.draining && !healer_.is_full(node.id) && (!at || table_[*at].leave_by_us == 0);
      });
  if (hope && now_us < table_[place].leave_by_us && !healer_.covers(place)) return;
  Runs lost;
  for (std::uint32_t page = 0; page < pages_.size(); ++page) {
    const HomePages::Page& entry = pages_[page];
    if ((entry.keepers & place_bit(place)) == 0) continue;
    if (((entry.keepers | entry.cachers) & ~place_bit(place) & ~table_.left()) == 0) append(lost, page);
  }
  table_.let_go(place, std::move(lost));
  healer_.forget(place);
}

void HomeDirectory::on(const From& from, const Leaving& body, Outbox& out) {
  if (rebuilding() || !from.place) return;
  HomeTable::Entry& entry = table_[*from.place];
  if (entry.leave_by_us == 0) {
    const std::uint64_t left_us = std::min(body.left_us, std::uint64_t{1} << 40);
    entry.leave_by_us = from.now_us + left_us - left_us / 4;
  }
  if (!entry.left) try_to_let_go(*from.place, from.now_us);
  if (entry.left && body.from < pages_.size())
    say(from.sender.node, from.session, leave_done_of(entry.lost, pages_.size(), body.from), out);
}

void HomeDirectory::on(const From& from, const Remove&, Outbox& out) {
  const RegionRecord& record = desk_.record();
  if (from.sender.tenant != record.tenant && from.sender.node != record.publisher)
    return say(from.sender.node, from.session, RefusedBy{Refusal::tenant}, out);
  if (record.removed) return say(from.sender.node, from.session, Removed{}, out);
  removers_.insert(from.sender.node);
  remove();
}

// After a change of the record.
bool HomeDirectory::sync(Outbox& out) {
  if (synced_ == desk_.modified()) return false;
  synced_ = desk_.modified();
  healer_.retry();
  for (const std::uint32_t place : table_.sync(desk_.record())) {
    healer_.forget(place);
    rebuild_.not_awaited(place);
    dropping_ &= ~place_bit(place);
    if ((table_.all() & place_bit(place)) != 0) pages_.join(place, table_.all());
  }
  std::erase_if(opens_, [&](const Opening& opening) {
    const std::optional<std::uint32_t> place = table_.find(opening.node, opening.session);
    if (place) say(opening.node, opening.session, opened_of(pages_, *place, opening.from), out);
    return place || !desk_.busy();
  });
  if (desk_.record().removed)
    for (const NodeId node : std::exchange(removers_, {})) say(node, Session{}, Removed{}, out);
  return true;
}

bool HomeDirectory::drop_members_that_are_over() {
  const Places over = table_.over(context_.view, desk_.modified(), context_.self) & ~dropping_;
  for_each_place(over, [&](std::uint32_t place) {
    healer_.forget(place);
    desk_.change(removal_of(table_[place].who.node, table_[place].who.session));
  });
  dropping_ |= over;
  return over != 0;
}

bool HomeDirectory::step_rebuild(std::uint64_t now_us, Outbox& out) {
  bool any = false;
  for_each_place(dropping_, [&](std::uint32_t place) { rebuild_.not_awaited(place); });
  end_rebuild();
  if (!rebuilding()) return true;
  rebuild_.send(now_us, context_.config.resend_us, [&](std::uint32_t place, std::uint32_t from) {
    any = true;
    say(table_[place].who.node, table_[place].who.session, NewTerm{.home = context_.self, .from = from}, out);
  });
  return any;
}

// Expiry, and a later version under the name, end a region.
bool HomeDirectory::step_life() {
  const RegionRecord& record = desk_.record();
  if (record.removed || removing_) return false;
  const StoredName* const name = context_.index.find_name(record.name);
  const bool expired = record.expires_s != 0 && context_.unix_s() >= record.expires_s;
  const bool superseded = name != nullptr && name->record.version > record.version;
  if (!expired && !superseded) return false;
  remove();
  return true;
}

bool HomeDirectory::step_removal(std::uint64_t now_us, Outbox& out) {
  if (!desk_.record().removed || now_us < removal_due_us_ || handing_over_) return false;
  removal_due_us_ = now_us + context_.config.resend_us;
  const RegionRecord& record = desk_.record();
  for_each_place(table_.all() & ~dropping_,
                 [&](std::uint32_t place) { say(table_[place].who.node, table_[place].who.session, Removed{}, out); });
  // A reading of the names that is older than the record might not show the region's own name.
  if (table_.all() != 0 || desk_.busy() || context_.index.names_at() < desk_.modified()) return true;
  const StoredName* const name = context_.index.find_name(record.name);
  const bool own = name != nullptr && name->record.serial == record.serial;
  desk_.erase(own ? std::optional(*name) : std::nullopt);
  return true;
}

void HomeDirectory::invite(const KnownNode& node) {
  if (desk_.busy() || !desk_.record().free_place()) return;
  desk_.change([who = node.id](RegionRecord& record) {
    if (record.place_of(who)) return;
    const Session session{kFirstInvitation + ++record.invitations};
    admission_of({.node = who, .session = session, .daemon = true})(record);
  });
}

bool HomeDirectory::step_healing(std::uint64_t now_us, Outbox& out) {
  bool moved = healer_.step(now_us);
  if (const KnownNode* const node = context_.view.find(healer_.take_invitation())) invite(*node);
  healer_.send(now_us, [&](std::uint32_t place, Body body) {
    moved = true;
    say(table_[place].who.node, table_[place].who.session, std::move(body), out);
  });
  if (Runs lost = healer_.take_lost(); !lost.empty())
    out.events.emplace_back(PagesLost{.serial = desk_.record().serial, .pages = std::move(lost)});
  return moved;
}

bool HomeDirectory::step_publishing(std::uint64_t now_us, Outbox& out) {
  if (!publishing_) return false;
  const RegionRecord& record = desk_.record();
  const bool done = record.copies == 0 || healer_.satisfied();
  const bool impossible = copies_are_impossible(context_.view, desk_);
  const bool wait = now_us < publishing_->deadline_us && !impossible;
  if (!done && !record.removed && wait) return false;
  const std::optional<std::uint32_t> lost = record.removed || rebuilding() ? std::nullopt : pages_.first_lost();
  PublishEnded ended{.ticket = publishing_->ticket, .serial = record.serial, .published = true};
  if (!done && record.removed) {
    ended.serial = fail(VMEM_ERROR_LOST, fmt::format("region '{}' was removed before its {} copies were made: publish "
                                                     "it again",
                                                     record.name, record.copies));
  } else if (lost) {
    ended.serial = fail(VMEM_ERROR_LOST, fmt::format("region '{}' is published, and page {} of it, at least, was lost "
                                                     "before another node had a copy: close it, and publish it anew",
                                                     record.name, *lost));
  } else if (!done) {
    const std::string why = unfit_.empty() ? why_too_few(record, context_.view, healer_.trouble(), impossible) : unfit_;
    const auto [fewest, lacking] = healer_.fewest_copies();
    ended.serial = std::unexpected(too_few_copies(record, fewest, lacking, why));
  }
  out.events.emplace_back(std::move(ended));
  publishing_.reset();
  return true;
}

void HomeDirectory::end(Outbox& out) {
  if (!publishing_) return;
  const RegionRecord& record = desk_.record();
  out.events.emplace_back(PublishEnded{
      .ticket = publishing_->ticket,
      .serial =
          fail(VMEM_ERROR_TIMEOUT, fmt::format("region '{}' is published, and this node is not its home any more: "
                                               "whether it has {} copies is not known; `vmem region list` shows it",
                                               record.name, record.copies)),
      .published = true});
  publishing_.reset();
}

bool HomeDirectory::step(std::uint64_t now_us, Outbox& out) {
  if (over() || context_.fenced()) return step_publishing(now_us, out);
  bool moved = desk_.step(now_us);
  if (over()) return true;
  moved |= sync(out);
  moved |= drop_members_that_are_over();
  moved |= step_life();
  moved |= step_removal(now_us, out);
  if (rebuilding()) return step_rebuild(now_us, out) || moved;
  if (!desk_.record().removed) moved |= step_healing(now_us, out);
  return step_publishing(now_us, out) || moved;
}

std::uint64_t HomeDirectory::due_us() const {
  const std::uint64_t publishing_us = publishing_ ? publishing_->deadline_us : UINT64_MAX;
  if (over() || context_.fenced()) return publishing_us;
  const bool removed = desk_.record().removed && !handing_over_;
  std::uint64_t due_us = std::min(desk_.due_us(), publishing_us);
  if (removed) due_us = std::min(due_us, removal_due_us_);
  if (rebuilding()) return std::min(due_us, rebuild_.due_us());
  return desk_.record().removed ? due_us : std::min(due_us, healer_.due_us());
}

}  // namespace vmem::cluster::directory
