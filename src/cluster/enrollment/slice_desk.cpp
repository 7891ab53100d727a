#include "cluster/enrollment/slice_desk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.hpp"
#include "base/log_limit.hpp"
#include "base/sizes.hpp"
#include "cluster/enrollment/json_fields.hpp"

namespace vmem::cluster {
namespace {

std::uint64_t number(NodeId id) { return static_cast<std::uint64_t>(id); }
std::uint32_t number(Slice slice) { return static_cast<std::uint32_t>(slice); }

void warn(const std::string& why) {
  static LogLimit limit;
  if (const auto occurrence = limit.next(); occurrence.logged)
    VMEM_LOG_WARN("{}; nobody gets this slice ({} such readings)", why, occurrence.count);
}

}  // namespace

std::string slice_key(Slice slice) { return fmt::format("{}{}", kSlicesPrefix, number(slice)); }
std::string slice_value(NodeId node) { return record_value({{"node", number(node)}}); }

SliceTable SliceTable::from(const Read& read) {
  SliceTable table;
  for (const Record& record : read.records) {
    std::uint64_t slice = 0;
    if (!parse_decimal(std::string_view(record.key).substr(kSlicesPrefix.size()), slice) || slice > UINT32_MAX)
      continue;
    JsonFields fields(record.key, record.value);
    const NodeId node{fields.number("node")};
    const Status status = fields.done();
    if (!status) warn(status.error().message);
    table.taken[Slice(slice)] = {.node = status ? node : NodeId{}, .modified = record.modified};
  }
  return table;
}

void SliceDesk::begin(const Seat& seat) {
  seat_ = seat;
  enrolling_trouble_.reset();
  backoff_.reset();
  due_us_ = 0;
}

std::vector<Slice> SliceDesk::end() {
  seat_.reset();
  call_.drop();
  plan_.reset();
  releasing_.clear();
  unclear_.clear();
  strays_ = false;
  const std::set<Slice> held = std::exchange(held_, {});
  return {held.begin(), held.end()};
}

void SliceDesk::close(const Error& why) {
  for (const Want& want : wants_) results_.push_back({.ticket = want.ticket, .slices = std::unexpected(why)});
  wants_.clear();
}

void SliceDesk::take(Ticket ticket, std::uint32_t count, std::uint64_t now_us) {
  if (count == 0 || count > kMostSlicesAtOnce) {
    auto refusal = fail(VMEM_ERROR_INVALID_VALUE, fmt::format("{} slices were asked for at once; 1 to {} are possible",
                                                              count, kMostSlicesAtOnce));
    results_.push_back({.ticket = ticket, .slices = std::move(refusal)});
    return;
  }
  wants_.push_back(
      {.ticket = ticket, .count = count, .deadline_us = now_us + config_.request_us, .over = {}, .from = {}});
}

void SliceDesk::take_over(Ticket ticket, Slice slice, NodeId from, std::uint64_t now_us) {
  wants_.push_back(
      {.ticket = ticket, .count = 1, .deadline_us = now_us + config_.request_us, .over = slice, .from = from});
}

Status SliceDesk::release(Slice slice) {
  if (held_.erase(slice) + unclear_.erase(slice) == 0)
    return fail(VMEM_ERROR_INVALID_VALUE,
                fmt::format("slice {} was to be released, and this node does not hold it", number(slice)));
  releasing_.insert(slice);
  return {};
}

void SliceDesk::poll(std::vector<EnrollmentEvent>& events) {
  std::ranges::move(results_, std::back_inserter(events));
  results_.clear();
}

void SliceDesk::finish(Result<std::vector<Slice>> slices) {
  results_.push_back({.ticket = wants_.front().ticket, .slices = std::move(slices)});
  wants_.pop_front();
}

bool SliceDesk::expire(std::uint64_t now_us) {
  bool any = false;
  while (!wants_.empty() && wants_.front().deadline_us <= now_us) {
    std::string why = trouble_ ? trouble_->message : "no answer came";
    if (!seat_)
      why = fmt::format("this node is no member of the cluster at present{}",
                        enrolling_trouble_ ? ": " + enrolling_trouble_->message : "");
    if (seat_ && wants_.front().over) unclear_.insert(*wants_.front().over);
    finish(fail(VMEM_ERROR_TIMEOUT, fmt::format("{} slices could not be taken from the registry within {}: {}; try "
                                                "again once it answers",
                                                wants_.front().count, exact_duration_us(config_.request_us), why)));
    any = true;
  }
  return any;
}

// By its record; and it is neither held nor being released.
bool SliceDesk::is_own(Slice slice, const SliceTable::Entry& entry) const {
  return entry.node == seat_->id && !held_.contains(slice) && !releasing_.contains(slice);
}

void SliceDesk::post(const SliceTable& table, Plan plan, const std::optional<std::string>& value, NodeId gone) {
  Commit commit;
  commit.conditions.push_back({.key = node_key(seat_->id), .modified = seat_->record});
  if (gone != NodeId{}) commit.conditions.push_back({.key = node_key(gone), .modified = {}});
  for (const Slice slice : plan.slices) {
    const auto there = table.taken.find(slice);
    const Revision modified = there == table.taken.end() ? Revision{} : there->second.modified;
    commit.conditions.push_back({.key = slice_key(slice), .modified = modified});
    commit.edits.push_back({.key = slice_key(slice), .value = value, .lease = {}});
  }
  plan_ = std::move(plan);
  call_ = calls_.post(std::move(commit));
}

// Returns whether there was something to release.
bool SliceDesk::plan_release(const SliceTable& table) {
  const auto names_this_node = [&](Slice slice) {
    const auto there = table.taken.find(slice);
    return there != table.taken.end() && there->second.node == seat_->id;
  };
  std::erase_if(releasing_, [&](Slice slice) { return !names_this_node(slice); });
  if (std::exchange(strays_, false)) releasing_.merge(strays_in(table));
  Plan plan;
  for (const Slice slice : releasing_)
    if (plan.slices.size() < kMostSlicesAtOnce) plan.slices.push_back(slice);
  if (plan.slices.empty()) return false;
  post(table, std::move(plan), std::nullopt);
  return true;
}

std::set<Slice> SliceDesk::strays_in(const SliceTable& table) const {
  std::set<Slice> strays;
  for (const auto& [slice, entry] : table.taken)
    if (is_own(slice, entry) && !unclear_.contains(slice)) strays.insert(slice);
  return strays;
}

Error SliceDesk::too_few(const SliceTable& table, std::uint32_t asked, const FreeSlices& free) const {
  std::map<NodeId, std::size_t> counts;
  for (const auto& [slice, entry] : table.taken) ++counts[entry.node];
  const auto most = std::ranges::max_element(counts, {}, [](const auto& each) { return each.second; });
  const std::string holder = most == counts.end()
                                 ? "nobody holds any"
                                 : fmt::format("node {} holds most, {}", number(most->first), most->second);
  const FreeSlices::Run longest = free.longest();
  const std::string run =
      longest.count == 0 ? ""
                         : fmt::format(", at most {} of them in a row, from slice {} on", longest.count, longest.first);
  return {.status = VMEM_ERROR_ADDRESS_SPACE,
          .native = 0,
          .message = fmt::format("{} adjacent slices of the cluster's address space were asked for, and {} of {} are "
                                 "free{}; {}: free regions there, or make the cluster anew with a larger option space",
                                 asked, free.total(), slices_, run, holder)};
}

void SliceDesk::plan_take(const SliceTable& table) {
  const Want& want = wants_.front();
  std::set<Slice> taken;
  const std::set<Slice> strays = strays_in(table);
  for (const auto& [slice, entry] : table.taken)
    if (!strays.contains(slice)) taken.insert(slice);
  const FreeSlices free(slices_, taken, strays);
  const std::optional<Slice> first = free.choose(want.count);
  if (!first) {
    strays_ |= !strays.empty();
    return finish(std::unexpected(too_few(table, want.count, free)));
  }
  Plan plan{.ticket = want.ticket, .slices = {}};
  for (std::uint32_t i = 0; i < want.count; ++i) plan.slices.push_back(Slice{number(*first) + i});
  plan.leaves_strays =
      std::ranges::any_of(strays, [&](Slice each) { return each < *first || each > plan.slices.back(); });
  post(table, std::move(plan), slice_value(seat_->id));
}

void SliceDesk::plan_take_over(const SliceTable& table) {
  const Want& want = wants_.front();
  const auto there = table.taken.find(*want.over);
  const NodeId holder = there == table.taken.end() ? NodeId{} : there->second.node;
  // Its own, and not held: an earlier commit for this want was done and got no answer.
  if (holder == seat_->id && is_own(*want.over, there->second))
    return post(table, {.ticket = want.ticket, .slices = {*want.over}}, slice_value(seat_->id));
  if (holder != want.from || holder == seat_->id || holder == NodeId{}) {
    const std::string has = holder == NodeId{} ? "no node" : fmt::format("node {}", number(holder));
    return finish(fail(VMEM_ERROR_IN_USE, fmt::format("slice {} of node {} was to be taken over, and {} has it",
                                                      number(*want.over), number(want.from), has)));
  }
  post(table, {.ticket = want.ticket, .slices = {*want.over}}, slice_value(seat_->id), want.from);
}

void SliceDesk::read(const Read& read) {
  const SliceTable table = SliceTable::from(read);
  if (plan_release(table) || wants_.empty()) return;
  if (wants_.front().over)
    plan_take_over(table);
  else
    plan_take(table);
}

void SliceDesk::committed(bool done, std::uint64_t now_us) {
  const Plan plan = *std::exchange(plan_, std::nullopt);
  if (!done) {
    trouble_ = Error{.status = VMEM_ERROR_IN_USE,
                     .native = 0,
                     .message =
                         "other nodes took slices meanwhile, or the node to take over from is still a member, "
                         "or this node's record was changed"};
    due_us_ = now_us + backoff_.next_us();
    return;
  }
  backoff_.reset();
  trouble_.reset();
  if (!plan.ticket) {
    for (const Slice slice : plan.slices) releasing_.erase(slice);
    return;
  }
  strays_ |= plan.leaves_strays;
  // Without the want, whose deadline has passed, they are strays.
  if (wants_.empty() || wants_.front().ticket != *plan.ticket) return;
  held_.insert(plan.slices.begin(), plan.slices.end());
  finish(plan.slices);
}

void SliceDesk::handle(const Reply& reply, std::uint64_t now_us) {
  if (const auto* error = std::get_if<Error>(&reply.what)) {
    trouble_ = *error;
    plan_.reset();
    due_us_ = now_us + backoff_.next_us();
  } else if (const auto* all = std::get_if<Read>(&reply.what)) {
    read(*all);
  } else if (const auto* commit = std::get_if<Committed>(&reply.what)) {
    committed(commit->done, now_us);
  }
}

bool SliceDesk::step(std::uint64_t now_us) {
  bool moved = false;
  if (const std::optional<Reply> reply = call_.take()) {
    handle(*reply, now_us);
    moved = true;
  }
  moved |= expire(now_us);
  const bool work = seat_ && (releasing() || !wants_.empty());
  if (!work || call_.pending() || now_us < due_us_) return moved;
  call_ = calls_.post(ReadPrefix{std::string(kSlicesPrefix)});
  return true;
}

std::uint64_t SliceDesk::due_us() const {
  const std::uint64_t deadline_us = wants_.empty() ? UINT64_MAX : wants_.front().deadline_us;
  const bool work = seat_ && (releasing() || !wants_.empty());
  return work && !call_.pending() ? std::min(deadline_us, due_us_) : deadline_us;
}

}  // namespace vmem::cluster
