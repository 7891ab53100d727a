#include "cluster/enrollment/record_desk.hpp"

#include <utility>

#include "base/log.hpp"

namespace vmem::cluster {

void RecordDesk::begin(const Seat& seat) {
  end();
  seat_ = seat;
  wanted_ = seat.value;
}

void RecordDesk::end() {
  seat_.reset();
  call_.drop();
  sent_.reset();
  unsure_ = changed_ = false;
  backoff_.reset();
  due_us_ = 0;
}

std::optional<Seat> RecordDesk::take_changed() { return std::exchange(changed_, false) ? seat_ : std::nullopt; }

void RecordDesk::settle(Revision revision) {
  seat_->record = revision;
  seat_->value = *std::exchange(sent_, std::nullopt);
  unsure_ = false;
  changed_ = true;
  (void)failures_.ended();
  call_.drop();
  backoff_.reset();
  due_us_ = 0;
}

bool RecordDesk::read(const Record& record) {
  if (record.modified == seat_->record) return true;
  if (record.value != sent_) return false;
  settle(record.modified);
  return true;
}

Commit RecordDesk::commit() const {
  const std::string key = node_key(seat_->id);
  return {.conditions = {{.key = key, .modified = seat_->record}},
          .edits = {{.key = key, .value = sent_, .lease = lease_.lease()}}};
}

void RecordDesk::warn(const Error& error) {
  if (is_away(error)) return;
  if (const auto outage = failures_.failed())
    VMEM_LOG_WARN("this node's record in the registry could not be changed {} times in {} s: {}", outage->failures,
                  outage->seconds, error.message);
}

void RecordDesk::handle(const Reply& reply, std::uint64_t now_us) {
  const auto* const error = std::get_if<Error>(&reply.what);
  if (const auto* const commit = std::get_if<Committed>(&reply.what); commit != nullptr && commit->done)
    return settle(reply.revision);
  if (error != nullptr) warn(*error);
  unsure_ |= error == nullptr || error->status == VMEM_ERROR_TIMEOUT;
  if (!unsure_) sent_.reset();
  due_us_ = now_us + backoff_.next_us();
}

bool RecordDesk::step(std::uint64_t now_us) {
  if (const std::optional<Reply> reply = call_.take()) {
    handle(*reply, now_us);
    return true;
  }
  if (now_us < due_us()) return false;
  if (!sent_) sent_ = wanted_;
  call_ = calls_.post(commit());
  return true;
}

std::uint64_t RecordDesk::due_us() const { return call_.pending() || settled() ? UINT64_MAX : due_us_; }

}  // namespace vmem::cluster
