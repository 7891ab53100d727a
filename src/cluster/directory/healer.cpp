#include "cluster/directory/healer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace vmem::cluster::directory {
namespace {

constexpr std::uint32_t kPagesAStep = 4096;

std::uint32_t count(Places places) { return std::uint32_t(std::popcount(places)); }

}  // namespace

void Healer::seek(std::uint32_t page) {
  pages_.set_seeking(page);
  keeps_.drop_page(page, KeepDesk::Kind::has);
  seek_.insert(page);
  look_again();
}

void Healer::verify(std::uint32_t page, std::uint32_t place) {
  if (keeps_.asks(page, place)) return;
  keeps_.ask(page, place, {.kind = KeepDesk::Kind::has, .round = ++round_, .sources = {}});
}

void Healer::not_there(std::uint32_t page, std::uint32_t place) {
  if (pages_.remove(page, place))
    seek(page);
  else
    decide(page);
  look_again();
}

// A page that is sought is LOST once nobody is left who could have it.
void Healer::decide(std::uint32_t page) {
  if (pages_[page].state != HomeState::seeking || seek_.contains(page)) return;
  if (keeps_.asked(page, KeepDesk::Kind::has)) return;
  pages_.set_lost(page);
  lost_.insert(page);
}

void Healer::answer(std::uint32_t page, std::uint32_t place, std::uint64_t round, bool yes, std::uint64_t now_us) {
  const std::optional<KeepDesk::Kind> awaited = keeps_.answer(page, place, round);
  pass_.due_us = now_us;
  if (awaited && yes) {
    pages_.add_keeper(page, place);
    seek_.erase(page);
    keeps_.drop_page(page, KeepDesk::Kind::has);
    avoid_us_.erase(table_[place].who.node);
    return look_again();
  }
  if (awaited) {
    if (awaited == KeepDesk::Kind::fetch) avoid_us_[table_[place].who.node] = now_us + context_.config.avoid_us;
    return not_there(page, place);
  }
  const bool keeps = (pages_[page].keepers & place_bit(place)) != 0;
  if (yes && !keeps && !keeps_.asks(page, place))
    keeps_.ask(page, place, {.kind = KeepDesk::Kind::release, .round = ++round_, .sources = {}});
}

void Healer::forget(std::uint32_t place) {
  std::vector<std::uint32_t> asked = keeps_.drop_place(place);
  for (std::uint32_t page = 0; page < pages_.size(); ++page)
    if (pages_.remove(page, place)) seek(page);
  for (const std::uint32_t page : asked) decide(page);
  look_again();
}

Runs Healer::take_lost() {
  Runs runs;
  for (const std::uint32_t page : std::exchange(lost_, {})) append(runs, page);
  return runs;
}

bool Healer::start_seeking(std::uint64_t now_us) {
  bool moved = false;
  ++round_;  // above that of all sources that were named before
  while (!seek_.empty() && is_open()) {
    const std::uint32_t page = *seek_.begin();
    seek_.erase(seek_.begin());
    moved = true;
    if (pages_[page].state != HomeState::seeking) continue;
    for_each_place(table_.all() & ~table_.left(), [&](std::uint32_t place) {
      keeps_.ask(page, place, {.kind = KeepDesk::Kind::has, .round = round_, .sources = {}, .next_us = now_us});
    });
    decide(page);
  }
  return moved;
}

// Daemons whose copies count: a publisher that is a daemon is not one of them.
Places Healer::copiers() const {
  const std::optional<std::uint32_t> publisher = table_.place_of(record_.publisher);
  return table_.daemons() & ~(publisher ? place_bit(*publisher) : 0);
}

// FREE and LOST pages lack nothing; one that is sought lacks everything.
bool Healer::is_short(std::uint32_t page) const {
  const HomePages::Page& entry = pages_[page];
  if (entry.state == HomeState::seeking) return true;
  if (entry.state != HomeState::held) return false;
  const Places stay = entry.keepers & ~going_;
  return stay == 0 || count(stay & copiers()) < record_.copies;
}

std::vector<NodeId> Healer::nodes_of(Places places) const {
  std::vector<NodeId> nodes;
  for_each_place(places, [&](std::uint32_t place) { nodes.push_back(table_[place].who.node); });
  return nodes;
}

std::vector<NodeId> Healer::avoided(std::uint64_t now_us) const {
  std::vector<NodeId> nodes;
  for (const auto& [node, until_us] : avoid_us_)
    if (now_us < until_us) nodes.push_back(node);
  return nodes;
}

void Healer::keep_at(std::uint32_t page, std::uint32_t place, std::uint64_t now_us) {
  std::vector<NodeId> sources;
  for (const std::uint32_t source : pages_.sources(page, place, table_.left()))
    sources.push_back(table_[source].who.node);
  ++table_[place].assigned;
  keeps_.ask(page, place,
             {.kind = KeepDesk::Kind::fetch,
              .round = round_,
              .sources = std::move(sources),
              .next_us = now_us,
              .until_us = now_us + context_.config.keep_us});
}

void Healer::heal(std::uint32_t page, std::uint64_t now_us) {
  const HomePages::Page& entry = pages_[page];
  if (entry.state != HomeState::held || keeps_.asked(page, KeepDesk::Kind::fetch)) return;
  const PlacementWish wish{
      .page_bytes = record_.page_bytes, .keepers = nodes_of(entry.keepers), .excluded = avoided(now_us)};
  const KnownNode* const daemon = choose_daemon(context_.view, table_, wish);
  if (daemon != nullptr) {
    if (const std::optional<std::uint32_t> place = table_.place_of(daemon->id)) return keep_at(page, *place, now_us);
    invite_ = daemon->id;
    return;
  }
  trouble_ = fmt::format("no other daemon has room for a page of {} bytes, answers and stays", record_.page_bytes);
  const Places cachers = entry.cachers & ~going_;
  if ((entry.keepers & ~going_) == 0 && cachers != 0) keep_at(page, std::uint32_t(std::countr_zero(cachers)), now_us);
}

bool Healer::can_spare(std::uint32_t page, std::uint32_t place) const {
  if (table_[place].who.node == record_.publisher || table_[place].leave_by_us != 0) return false;
  const Places stay = pages_[page].keepers & ~going_ & ~place_bit(place);
  return stay != 0 && count(stay & copiers()) >= record_.copies;
}

void Healer::trim(std::uint32_t page) {
  if (pages_[page].state != HomeState::held || !is_open()) return;
  const auto release = [&](std::uint32_t place) {
    if ((pages_[page].keepers & place_bit(place)) == 0 || keeps_.asks(page, place) || !can_spare(page, place)) return;
    pages_.make_cacher(page, place);
    keeps_.ask(page, place, {.kind = KeepDesk::Kind::release, .round = round_, .sources = {}});
  };
  for_each_place(pages_[page].keepers & going_, release);
  for_each_place(pages_[page].keepers & ~table_.daemons(), release);
  for_each_place(pages_[page].keepers, release);
}

void Healer::end_pass(std::uint64_t now_us) {
  pass_.satisfied = pass_.lacking == 0 && !pass_.again;
  pass_.due_us = pass_.satisfied ? UINT64_MAX : now_us + context_.config.resend_us;
  if (pass_.again) pass_.due_us = now_us;
  pass_.next = pass_.lacking = 0;
}

bool Healer::step_pass(std::uint64_t now_us) {
  if (pass_.next == 0 && !pass_.again && now_us < pass_.due_us) return false;
  if (pass_.next == 0) pass_.again = false;
  const std::uint32_t before = pass_.next;
  for (std::uint32_t i = 0; i < kPagesAStep && pass_.next < pages_.size() && is_open(); ++i, ++pass_.next) {
    if (is_short(pass_.next)) {
      ++pass_.lacking;
      pass_.satisfied = false;
      heal(pass_.next, now_us);
    } else {
      trim(pass_.next);
    }
  }
  if (pass_.next == pages_.size()) {
    end_pass(now_us);
    return true;
  }
  return pass_.next != before;
}

bool Healer::step(std::uint64_t now_us) {
  ++round_;
  going_ = table_.going(context_.view);
  bool moved = false;
  for (const auto& [page, place] : keeps_.expire(now_us)) {
    avoid_us_[table_[place].who.node] = now_us + context_.config.avoid_us;
    trouble_ = fmt::format("node {} did not take a copy in time", std::uint64_t(table_[place].who.node));
    moved = true;
  }
  moved |= start_seeking(now_us);
  moved |= step_pass(now_us);
  return moved;
}

void Healer::send(std::uint64_t now_us, const std::function<void(std::uint32_t place, Body body)>& to) {
  for (KeepDesk::Batch& batch : keeps_.due(now_us, context_.config.resend_us)) {
    if (batch.kind == KeepDesk::Kind::release)
      to(batch.place, Release{.pages = std::move(batch.pages), .round = batch.round});
    else
      to(batch.place, Keep{.pages = std::move(batch.pages), .round = batch.round, .sources = std::move(batch.sources)});
  }
}

std::uint64_t Healer::due_us() const {
  const std::uint64_t asked_us = keeps_.due_us();
  if (!is_open()) return asked_us;
  const bool at_once = !seek_.empty() || pass_.again || pass_.next != 0;
  return at_once ? 0 : std::min(asked_us, pass_.due_us);
}

std::pair<std::uint32_t, std::uint32_t> Healer::fewest_copies() const {
  std::uint32_t fewest = record_.copies, lacking = 0;
  for (std::uint32_t page = 0; page < pages_.size(); ++page) {
    if (pages_[page].state == HomeState::free) continue;
    const std::uint32_t copies = count(pages_[page].keepers & copiers());
    fewest = std::min(fewest, copies);
    lacking += copies < record_.copies ? 1 : 0;
  }
  return {fewest, lacking};
}

}  // namespace vmem::cluster::directory
