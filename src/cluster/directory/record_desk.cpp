#include "cluster/directory/record_desk.hpp"

#include <utility>

namespace vmem::cluster::directory {

void RecordDesk::erase(std::optional<StoredName> name) {
  if (call_.pending()) return;
  erasing_ = true;
  name_ = std::move(name);
}

void RecordDesk::see(std::optional<StoredRegion> region, Revision revision) {
  seen_ = std::move(region);
  seen_at_ = revision;
  const RegionRecord& own = region_.record;
  over_ = !seen_ || seen_->record.home != own.home || seen_->record.term != own.term;
  if (!over_) region_ = *seen_;
}

void RecordDesk::post_commit() {
  const std::string key = region_key(region_.record.serial);
  Commit commit{.conditions = {{.key = key, .modified = region_.modified}}, .edits = {}};
  next_ = region_.record;
  posted_ = edits_.size();
  for (const Edit& edit : edits_) edit(next_);
  if (erasing_)
    commit.edits.push_back({.key = key, .value = std::nullopt, .lease = {}});
  else
    commit.edits.push_back({.key = key, .value = json_of(next_), .lease = {}});
  if (erasing_ && name_) {
    commit.conditions.push_back({.key = name_key(next_.name), .modified = name_->modified});
    commit.edits.push_back({.key = name_key(next_.name), .value = std::nullopt, .lease = {}});
  }
  call_ = calls_.post(std::move(commit));
}

void RecordDesk::committed(Revision revision) {
  edits_.erase(edits_.begin(), edits_.begin() + std::ptrdiff_t(posted_));
  if (erasing_) return see(std::nullopt, revision);
  see(StoredRegion{.record = next_, .modified = revision}, revision);
}

void RecordDesk::read(const Read& read, Revision revision) {
  const std::string key = region_key(region_.record.serial);
  const Record* const record = find_record(read, key);
  if (record == nullptr) return see(std::nullopt, revision);
  Result<RegionRecord> region = parse_region(key, record->value);
  // Damaged by somebody: it is written again.
  if (!region) {
    region_.modified = record->modified;
    if (edits_.empty()) edits_.emplace_back([](RegionRecord&) {});
    return;
  }
  see(StoredRegion{.record = *std::move(region), .modified = record->modified}, revision);
}

void RecordDesk::handle(const Reply& reply, std::uint64_t now_us) {
  if (const auto* records = std::get_if<Read>(&reply.what)) {
    verify_ = false;
    return read(*records, reply.revision);
  }
  const auto* const commit = std::get_if<Committed>(&reply.what);
  if (commit != nullptr && commit->done) return committed(reply.revision);
  erasing_ = false;  // whoever wants it asks again, with the name as it is then
  verify_ = true;
  due_us_ = now_us + spread_us(config_.retry_us, random_);
}

bool RecordDesk::step(std::uint64_t now_us) {
  if (over_) return false;
  if (const std::optional<Reply> reply = call_.take()) {
    handle(*reply, now_us);
    return true;
  }
  if (call_.pending() || now_us < due_us_) return false;
  if (verify_) {
    call_ = calls_.post(ReadPrefix{region_key(region_.record.serial)});
    return true;
  }
  if (edits_.empty() && !erasing_) return false;
  post_commit();
  return true;
}

std::uint64_t RecordDesk::due_us() const noexcept {
  const bool work = verify_ || erasing_ || !edits_.empty();
  return work && !over_ && !call_.pending() ? due_us_ : UINT64_MAX;
}

}  // namespace vmem::cluster::directory
