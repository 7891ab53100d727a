#include "cluster/enrollment/enrollment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/sizes.hpp"

namespace vmem::cluster {
namespace {

Error error(vmem_status status, std::string message) {
  return {.status = status, .native = 0, .message = std::move(message)};
}

}  // namespace

Enrollment::Enrollment(Registry& registry, const Clock& clock, Setup setup)
    : clock_(clock),
      setup_(std::move(setup)),
      calls_(registry, clock),
      lease_(calls_, setup_.config, setup_.random),
      admission_(calls_, lease_, setup_.config, setup_.random, setup_.parameters, setup_.self),
      record_(calls_, lease_, setup_.config, setup_.random),
      holdings_(calls_, lease_, setup_.config),
      serials_(calls_, setup_.config, setup_.random),
      slices_(calls_, setup_.config, setup_.random, setup_.parameters.slices()),
      poll_(calls_, setup_.config),
      members_({NodeId{}, setup_.self.incarnation}) {
  if (Status checked = setup_.config.check(); !checked) refuse(std::move(checked).error());
}

void Enrollment::refuse(Error why) {
  if (expelled_)
    why = error(VMEM_ERROR_NOT_INITIALIZED,
                "this process is no longer a member of the cluster, which does not take it in again: " + why.message);
  closed_ = why;
  finish(Refused{std::move(why)});
}

void Enrollment::finish(EnrollmentEvent last) {
  stage_ = Stage::over;
  seat_.reset();
  record_.end();
  holdings_.end();
  slices_.end();
  lease_.abandon();
  poll_.stop();
  close(*closed_);
  serials_.poll(events_);
  slices_.poll(events_);
  events_.push_back(std::move(last));
}

void Enrollment::close(const Error& why) {
  serials_.close(why);
  slices_.close(why);
}

void Enrollment::take_seat(Seat seat) {
  seat_ = std::move(seat);
  stage_ = Stage::enrolled;
  said_fenced_ = false;
  members_.become(seat_->id);
  record_.begin(*seat_);
  holdings_.begin(seat_->id);
  record_.change(json_of(admission_.self()));
  slices_.begin(*seat_);
  poll_.start();
  events_.emplace_back(Enrolled{seat_->id});
}

void Enrollment::lose_seat(Error why) {
  if (stage_ == Stage::leaving) return finish(Left{std::unexpected(std::move(why))});
  events_.emplace_back(Expelled{.former = seat_->id, .slices = slices_.end(), .why = std::move(why)});
  seat_.reset();
  expelled_ = true;
  record_.end();
  holdings_.end();
  poll_.stop();
  stage_ = Stage::enrolling;
  admission_.restart();
}

bool Enrollment::note_fence(std::uint64_t now_us) {
  if (!seat_ || said_fenced_ == lease_.fenced(now_us)) return false;
  said_fenced_ = !said_fenced_;
  if (said_fenced_)
    events_.emplace_back(Fenced{});
  else
    events_.emplace_back(FenceEnded{});
  return true;
}

bool Enrollment::check_lease() {
  if (!seat_ || lease_.state() != LeaseKeeper::State::lost) return false;
  lose_seat(error(VMEM_ERROR_LOST, fmt::format("the registry has ended the lease of node {}, which was not renewed "
                                               "within {} s: the node was stopped, or cut off from the registry",
                                               static_cast<std::uint64_t>(seat_->id), setup_.config.lease_s)));
  return true;
}

bool Enrollment::is_own(const NodesReading& reading) {
  const auto own = std::ranges::find(reading.nodes, node_key(seat_->id), &Record::key);
  return own != reading.nodes.end() && record_.read(*own);
}

bool Enrollment::step_view(std::uint64_t now_us) {
  const bool moved = poll_.step(now_us);
  const std::optional<NodesReading> reading = poll_.take();
  if (!reading) return moved;
  members_.take_in(*reading, events_);
  if (!seat_ || reading->revision < seat_->record) return true;
  if (is_own(*reading)) {
    lease_.confirm(reading->sent_us);
  } else {
    lose_seat(error(VMEM_ERROR_LOST, fmt::format("the registry's record of node {} was erased or changed",
                                                 static_cast<std::uint64_t>(seat_->id))));
  }
  return true;
}

bool Enrollment::step_record(std::uint64_t now_us) {
  const bool moved = record_.step(now_us);
  if (std::optional<Seat> seat = record_.take_changed()) {
    seat_ = std::move(seat);
    slices_.renew(*seat_);
  }
  say_changed();
  return moved;
}

void Enrollment::say_changed() {
  if (!change_ || !seat_ || !record_.settled()) return;
  events_.emplace_back(RecordChanged{*std::exchange(change_, std::nullopt)});
}

bool Enrollment::step_enrolling(std::uint64_t now_us) {
  const bool moved = admission_.step(now_us);
  slices_.tell_trouble(admission_.trouble());
  if (admission_.refused()) {
    refuse(*admission_.refused());
    return true;
  }
  if (std::optional<Seat> seat = admission_.take_seat()) take_seat(std::move(*seat));
  return moved;
}

void Enrollment::end_lease() {
  released_ = !seat_ || !slices_.releasing();
  seat_.reset();
  record_.end();
  holdings_.end();
  slices_.end();
  lease_.end();
}

// The releases have half of the time, so that the lease is ended even if they do not end.
bool Enrollment::step_leaving(std::uint64_t now_us) {
  const bool over = now_us >= leave_by_us_, ended = lease_.state() == LeaseKeeper::State::idle;
  if (ended && released_) {
    finish(Left{});
    return true;
  }
  if (over || ended) {
    finish(Left{fail(VMEM_ERROR_TIMEOUT,
                     fmt::format("the registry did not confirm within {} that this node leaves: its lease ends by "
                                 "itself within {} s, and slices that were to be released keep its name",
                                 exact_duration_us(setup_.config.leave_us), setup_.config.lease_s))});
    return true;
  }
  const bool patient = now_us + setup_.config.leave_us / 2 < leave_by_us_;
  if (lease_.state() == LeaseKeeper::State::ending || (slices_.releasing() && patient)) return false;
  end_lease();
  return true;
}

bool Enrollment::step_stage(std::uint64_t now_us) {
  if (stage_ == Stage::enrolling) return step_enrolling(now_us);
  if (stage_ == Stage::leaving) return step_leaving(now_us);
  return false;
}

bool Enrollment::step() {
  const std::uint64_t now_us = clock_.now_us();
  if (stage_ == Stage::over) return false;
  bool moved = calls_.poll();
  // Before any renewal is taken in, so that no fence passes unsaid.
  moved |= note_fence(now_us);
  moved |= lease_.step(now_us);
  moved |= check_lease();
  moved |= step_stage(now_us);
  moved |= step_view(now_us);
  moved |= step_record(now_us);
  moved |= holdings_.step(now_us);
  moved |= serials_.step(now_us);
  moved |= slices_.step(now_us);
  // Now, so that what was taken is said before an expulsion voids it.
  serials_.poll(events_);
  slices_.poll(events_);
  moved |= note_fence(now_us);
  return moved;
}

std::uint64_t Enrollment::next_due_us() const {
  if (stage_ == Stage::over) return UINT64_MAX;
  std::uint64_t due_us = std::min(
      {lease_.due_us(), poll_.due_us(), record_.due_us(), holdings_.due_us(), serials_.due_us(), slices_.due_us()});
  if (stage_ == Stage::enrolling) due_us = std::min(due_us, admission_.due_us());
  if (seat_ && !said_fenced_) due_us = std::min(due_us, lease_.fence_at_us());
  if (stage_ != Stage::leaving) return due_us;
  return std::min(due_us, seat_ ? leave_by_us_ - setup_.config.leave_us / 2 : leave_by_us_);
}

void Enrollment::poll(std::vector<EnrollmentEvent>& events) {
  std::ranges::move(events_, std::back_inserter(events));
  events_.clear();
}

Ticket Enrollment::asked(Ticket ticket) {
  if (closed_) close(*closed_);
  serials_.poll(events_);
  slices_.poll(events_);
  return ticket;
}

Result<Ticket> Enrollment::change_record(NodeRecord record) {
  VMEM_TRY(parse_node_record(node_key(seat_ ? seat_->id : NodeId{}), json_of(record)));
  const Ticket ticket = next_ticket();
  if (stage_ == Stage::leaving || stage_ == Stage::over) return ticket;
  change_ = ticket;
  admission_.describe(std::move(record));
  if (seat_) record_.change(json_of(admission_.self()));
  say_changed();
  return ticket;
}

Ticket Enrollment::take_serial() {
  serials_.take(next_ticket(), clock_.now_us());
  return asked(last_ticket_);
}

Ticket Enrollment::take_slices(std::uint32_t count) {
  slices_.take(next_ticket(), count, clock_.now_us());
  return asked(last_ticket_);
}

Ticket Enrollment::take_over_slice(Slice slice, NodeId from) {
  slices_.take_over(next_ticket(), slice, from, clock_.now_us());
  return asked(last_ticket_);
}

void Enrollment::leave(const std::vector<Slice>& empty) {
  if (stage_ == Stage::leaving || stage_ == Stage::over) return;
  stage_ = Stage::leaving;
  leave_by_us_ = clock_.now_us() + setup_.config.leave_us;
  closed_ = error(VMEM_ERROR_NOT_INITIALIZED, "this node leaves the cluster");
  close(*closed_);
  for (const Slice slice : empty) (void)slices_.release(slice);
  if (seat_)
    slices_.release_strays();
  else
    end_lease();
}

}  // namespace vmem::cluster
