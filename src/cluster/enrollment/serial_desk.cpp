#include "cluster/enrollment/serial_desk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/sizes.hpp"

namespace vmem::cluster {
namespace {

constexpr std::uint64_t kMostAtOnce = 1000;

}  // namespace

void SerialDesk::take(Ticket ticket, std::uint64_t now_us) {
  wants_.push_back({.ticket = ticket, .deadline_us = now_us + config_.request_us});
}

void SerialDesk::close(const Error& why) {
  for (const Want& want : wants_) results_.push_back({.ticket = want.ticket, .serial = std::unexpected(why)});
  wants_.clear();
  call_.drop();
  count_ = 0;
}

void SerialDesk::poll(std::vector<EnrollmentEvent>& events) {
  std::ranges::move(results_, std::back_inserter(events));
  results_.clear();
}

bool SerialDesk::expire(std::uint64_t now_us) {
  bool any = false;
  while (!wants_.empty() && wants_.front().deadline_us <= now_us) {
    const std::string why = trouble_ ? trouble_->message : "no answer came";
    results_.push_back(
        {.ticket = wants_.front().ticket,
         .serial = fail(VMEM_ERROR_TIMEOUT, fmt::format("no serial could be taken from the registry within {}: {}; try "
                                                        "again once it answers",
                                                        exact_duration_us(config_.request_us), why))});
    wants_.pop_front();
    any = true;
  }
  return any;
}

void SerialDesk::commit(const SerialCounter& counter) {
  count_ = std::min<std::uint64_t>(wants_.size(), kMostAtOnce);
  if (count_ == 0) return;
  first_ = counter.last + 1;
  Commit commit;
  count_up(counter, count_, commit);
  call_ = calls_.post(std::move(commit));
}

void SerialDesk::hand_out() {
  for (std::uint64_t i = 0; i < count_ && !wants_.empty(); ++i) {
    results_.push_back({.ticket = wants_.front().ticket, .serial = first_ + i});
    wants_.pop_front();
  }
  backoff_.reset();
  trouble_.reset();
}

void SerialDesk::again(std::uint64_t now_us) { due_us_ = now_us + backoff_.next_us(); }

void SerialDesk::handle(const Reply& reply, std::uint64_t now_us) {
  if (const auto* error = std::get_if<Error>(&reply.what)) {
    trouble_ = *error;
    again(now_us);
  } else if (const auto* committed = std::get_if<Committed>(&reply.what)) {
    if (committed->done) {
      hand_out();
    } else {
      trouble_ = Error{.status = VMEM_ERROR_IN_USE, .native = 0, .message = "other nodes took serials meanwhile"};
      again(now_us);
    }
  } else if (const auto* read = std::get_if<Read>(&reply.what)) {
    const Result<SerialCounter> counter = read_counter(*read);
    if (counter) return commit(*counter);
    trouble_ = counter.error();
    again(now_us);
  }
  count_ = 0;
}

bool SerialDesk::step(std::uint64_t now_us) {
  bool moved = false;
  if (const std::optional<Reply> reply = call_.take()) {
    handle(*reply, now_us);
    moved = true;
  }
  moved |= expire(now_us);
  if (wants_.empty() || call_.pending() || now_us < due_us_) return moved;
  call_ = calls_.post(ReadPrefix{std::string(kSerialKey)});
  return true;
}

std::uint64_t SerialDesk::due_us() const {
  if (wants_.empty()) return UINT64_MAX;
  const std::uint64_t deadline_us = wants_.front().deadline_us;
  return call_.pending() ? deadline_us : std::min(deadline_us, due_us_);
}

}  // namespace vmem::cluster
