#include "cluster/directory/healer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <tuple>
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
  look_.insert(page);
}

// Loses nothing if there is no room: a reader that misses the page says so again.
void Healer::verify(std::uint32_t page, std::uint32_t place) {
  if (!may(KeepDesk::Kind::has) || keeps_.asks(page, place)) return;
  keeps_.ask(page, place, {.kind = KeepDesk::Kind::has, .round = ++round_, .sources = {}});
}

void Healer::not_there(std::uint32_t page, std::uint32_t place) {
  if (pages_.remove(page, place))
    seek(page);
  else
    decide(page);
  look_.insert(page);
}

// A page that is sought is LOST once nobody is left who could have it.
void Healer::decide(std::uint32_t page) {
  if (pages_[page].state != HomeState::seeking || seek_.contains(page)) return;
  if (keeps_.asked(page, KeepDesk::Kind::has)) return;
  pages_.set_without_keeper(page);
  look_.insert(page);
  if (pages_[page].state == HomeState::lost) lost_.insert(page);
}

// The participant has the page, and promises nothing.
void Healer::only_cached(std::uint32_t page, std::uint32_t place) {
  pages_.make_cacher(page, place);
  if (pages_[page].state == HomeState::held && pages_[page].keepers == 0)
    seek(page);
  else
    decide(page);
  look_.insert(page);
}

void Healer::answer(std::uint32_t page, std::uint32_t place, std::uint64_t round, KeepAnswer said,
                    std::uint64_t now_us) {
  const std::optional<KeepDesk::Kind> awaited = keeps_.answer(page, place, round);
  const bool yes = said == KeepAnswer::yes;
  if (awaited && yes) {
    if (pages_[page].state == HomeState::seeking) release_others(page, place);
    pages_.add_keeper(page, place);
    seek_.erase(page);
    look_.insert(page);
    if (!is_full(table_[place].who.node) && avoided_.erase(table_[place].who.node) != 0) retry();
    return;
  }
  if (awaited && said == KeepAnswer::cached) return only_cached(page, place);
  if (awaited) {
    if (awaited == KeepDesk::Kind::fetch) avoid(table_[place].who.node, now_us, said);
    return not_there(page, place);
  }
  // A page that is sought may be here only: it is asked for again.
  const bool keeps = (pages_[page].keepers & place_bit(place)) != 0;
  if (!yes || keeps || pages_[page].state == HomeState::seeking || keeps_.asks(page, place)) return;
  if (pages_[page].state == HomeState::unkept)
    verify(page, place);
  else
    keeps_.ask(page, place, {.kind = KeepDesk::Kind::release, .round = ++round_, .sources = {}});
}

void Healer::avoid(NodeId node, std::uint64_t now_us, KeepAnswer said) {
  const bool full = said == KeepAnswer::no_room;
  avoided_[node] = {.until_us = now_us + context_.config.avoid_us, .full = full};
  if (full) trouble_ = fmt::format("node {} has no room for more copies", std::uint64_t(node));
}

bool Healer::is_full(NodeId node) const {
  const auto found = avoided_.find(node);
  return found != avoided_.end() && found->second.full;
}

// The others were asked, too, may have promised to keep the page, and would do so for ever.
void Healer::release_others(std::uint32_t page, std::uint32_t keeper) {
  ++round_;
  keeps_.release_rest(page, round_);
  if (!seek_.contains(page)) return;  // or else what was asked before is forgotten
  for_each_place(table_.all() & ~place_bit(keeper), [&](std::uint32_t place) {
    if (!keeps_.asks(page, place))
      keeps_.ask(page, place, {.kind = KeepDesk::Kind::release, .round = round_, .sources = {}});
  });
}

void Healer::forget(std::uint32_t place) {
  const std::vector<std::uint32_t> asked = keeps_.drop_place(place);
  if (pages_.names(place)) {
    for (std::uint32_t page = 0; page < pages_.size(); ++page) {
      if (!pages_.names(page, place)) continue;
      if (pages_.remove(page, place)) seek(page);
      look_.insert(page);
    }
    pages_.forgotten(place);
  }
  for (const std::uint32_t page : asked) {
    decide(page);
    look_.insert(page);
  }
}

Runs Healer::take_lost() {
  Runs runs;
  for (const std::uint32_t page : std::exchange(lost_, {})) append(runs, page);
  return runs;
}

// A seek that takes long begins anew later, so that it does not hold up the others.
bool Healer::start_seeking(std::uint64_t now_us) {
  ++round_;  // above that of all sources that were named before
  bool moved = false;
  for (std::uint32_t i = 0; i < kPagesAStep && may(KeepDesk::Kind::has) && !seek_.empty(); ++i) {
    const std::uint32_t page = seek_.next(seek_from_);
    seek_from_ = page + 1;
    seek_.erase(page);
    moved = true;
    if (pages_[page].state != HomeState::seeking) continue;
    for_each_place(table_.all() & ~table_.left(), [&](std::uint32_t place) {
      keeps_.ask(page, place,
                 {.kind = KeepDesk::Kind::has,
                  .round = round_,
                  .sources = {},
                  .next_us = now_us,
                  .until_us = now_us + context_.config.keep_us});
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

// FREE and LOST pages lack nothing; one without a keeper lacks everything.
bool Healer::is_short(std::uint32_t page) const {
  const HomePages::Page& entry = pages_[page];
  if (entry.state == HomeState::free || entry.state == HomeState::lost) return false;
  const Places stay = entry.keepers & ~going_;
  return stay == 0 || count(stay & copiers()) < record_.copies;
}

std::vector<NodeId> Healer::nodes_of(Places places) const {
  std::vector<NodeId> nodes;
  for_each_place(places, [&](std::uint32_t place) { nodes.push_back(table_[place].who.node); });
  return nodes;
}

// Each step begins by dropping those whose time is up.
std::vector<NodeId> Healer::avoided() const {
  std::vector<NodeId> nodes;
  for (const auto& [node, avoided] : avoided_) nodes.push_back(node);
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

const KnownNode* Healer::best_for(Places keepers) const {
  const PlacementWish wish{.page_bytes = record_.page_bytes,
                           .keepers = nodes_of(keepers),
                           .excluded = avoided(),
                           .participants_only = !record_.free_place()};
  return choose_daemon(context_.view, table_, wish);
}

// Asked once a step for pages with the same keepers, if the answer is nobody.
const KnownNode* Healer::choose(const HomePages::Page& entry) {
  if (entry.keepers == nobody_for_) return nullptr;
  const KnownNode* const daemon = best_for(entry.keepers);
  if (daemon != nullptr && table_.place_of(daemon->id)) return daemon;
  nobody_for_ = entry.keepers;
  if (daemon != nullptr)
    invite_ = daemon->id;
  else if (std::ranges::none_of(avoided_, [](const auto& each) { return each.second.full; }))
    trouble_ = fmt::format("no other daemon has room for a page of {} bytes, answers and stays", record_.page_bytes);
  return nullptr;
}

void Healer::heal(std::uint32_t page, std::uint64_t now_us) {
  const HomePages::Page& entry = pages_[page];
  if (entry.state == HomeState::seeking || keeps_.asked(page, KeepDesk::Kind::fetch)) return;
  if (const KnownNode* const daemon = choose(entry)) return keep_at(page, *table_.place_of(daemon->id), now_us);
  if (invite_ != NodeId{}) return;
  const Places cachers = entry.cachers & table_.daemons() & ~going_;
  if ((entry.keepers & ~going_) == 0 && cachers != 0) keep_at(page, std::uint32_t(std::countr_zero(cachers)), now_us);
}

// A node that is forced to go keeps no copy that nobody else can take, if another daemon has one.
bool Healer::can_spare(std::uint32_t page, std::uint32_t place) const {
  if (table_[place].who.node == record_.publisher || table_[place].leave_by_us != 0) return false;
  const Places keepers = pages_[page].keepers, stay = keepers & ~going_ & ~place_bit(place);
  const std::uint32_t copies = count(stay & copiers());
  if (stay != 0 && copies >= record_.copies) return true;
  return copies != 0 && (forced_ & place_bit(place)) != 0 && !keeps_.asked(page, KeepDesk::Kind::fetch) &&
         best_for(keepers) == nullptr;
}

// One of the keepers that are not needed: rather one that is to leave, or is no daemon. None: 0
Places Healer::to_spare(std::uint32_t page) const {
  const Places keepers = pages_[page].keepers;
  if (pages_[page].state != HomeState::held) return 0;
  for (const Places among : {keepers & going_, keepers & ~table_.daemons(), keepers}) {
    Places spare = 0;
    for_each_place(among, [&](std::uint32_t place) {
      if (spare == 0 && !keeps_.asks(page, place) && can_spare(page, place)) spare = place_bit(place);
    });
    if (spare != 0) return spare;
  }
  return 0;
}

bool Healer::trim() {
  bool moved = false;
  for (std::uint32_t i = 0; i < kPagesAStep && may(KeepDesk::Kind::release) && !surplus_.empty(); ++i) {
    const std::uint32_t page = surplus_.next(0);
    const Places spare = to_spare(page);
    moved = true;
    if (spare == 0) {
      surplus_.erase(page);
      continue;
    }
    const auto place = std::uint32_t(std::countr_zero(spare));
    pages_.make_cacher(page, place);
    keeps_.ask(page, place, {.kind = KeepDesk::Kind::release, .round = round_, .sources = {}});
  }
  return moved;
}

bool Healer::look(std::uint64_t now_us) {
  if (now_us >= retry_us_) {
    look_.take(lacking_);
    retry_us_ = UINT64_MAX;
  }
  bool moved = false;
  for (std::uint32_t i = 0; i < kPagesAStep && may(KeepDesk::Kind::fetch) && !look_.empty(); ++i) {
    const std::uint32_t page = look_.next(look_from_);
    look_from_ = page + 1;
    look_.erase(page);
    moved = true;
    if (!is_short(page)) {
      lacking_.erase(page);
      if (to_spare(page) != 0) surplus_.insert(page);
      continue;
    }
    lacking_.insert(page);
    heal(page, now_us);
    if (forced_ != 0 && to_spare(page) != 0) surplus_.insert(page);
    // The record has to change first, which may fail.
    if (invite_ != NodeId{}) retry_us_ = std::min(retry_us_, now_us + context_.config.resend_us);
  }
  if (lacking_.empty()) return moved;
  for (const auto& [node, avoided] : avoided_) retry_us_ = std::min(retry_us_, avoided.until_us);
  return moved;
}

// Who begins to leave, or stays after all, changes what its pages need.
void Healer::look_for_going() {
  const std::pair now{table_.going(context_.view), table_.forced(context_.view)};
  if (std::pair(going_, forced_) == now) return;
  std::tie(going_, forced_) = now;
  look_.fill();
}

bool Healer::covers(std::uint32_t place) {
  look_for_going();
  const Places going = going_ | place_bit(place);
  const auto covered = [&](std::uint32_t page) {
    const Places keepers = pages_[page].keepers;
    return (keepers & place_bit(place)) == 0 || (keepers & ~going) != 0;
  };
  return for_each_until(look_, covered) && for_each_until(lacking_, covered);
}

// Who had not answered by then may have the page by now, so it is asked to keep nothing.
bool Healer::expire(std::uint64_t now_us) {
  const auto late = keeps_.expire(now_us);
  for (const auto& [key, kind] : late) {
    const auto [page, place] = key;
    if (kind == KeepDesk::Kind::has) {
      seek(page);
      continue;
    }
    const NodeId node = table_[place].who.node;
    avoid(node, now_us, KeepAnswer::no);
    trouble_ = fmt::format("node {} did not take a copy in time", std::uint64_t(node));
    keeps_.ask(page, place, {.kind = KeepDesk::Kind::release, .round = ++round_, .sources = {}});
    look_.insert(page);
  }
  std::erase_if(avoided_, [now_us](const auto& each) { return each.second.until_us <= now_us; });
  return !late.empty();
}

bool Healer::step(std::uint64_t now_us) {
  nobody_for_.reset();
  look_for_going();
  bool moved = expire(now_us);
  moved |= start_seeking(now_us);
  moved |= look(now_us);
  return trim() || moved;
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
  const bool at_once = (may(KeepDesk::Kind::has) && !seek_.empty()) || (may(KeepDesk::Kind::fetch) && !look_.empty()) ||
                       (may(KeepDesk::Kind::release) && !surplus_.empty());
  return at_once ? 0 : std::min(keeps_.due_us(), retry_us_);
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
