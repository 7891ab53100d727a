#include "cluster/directory/publish_desk.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cluster/enrollment/node_record.hpp"

namespace vmem::cluster::directory {

Status check_written(const RegionRecord& region, const Runs& written) {
  std::uint64_t end = 0;
  for (const Run& run : written) {
    if (run.first < end || run.count == 0)
      return fail(VMEM_ERROR_INVALID_RANGE,
                  fmt::format("the written pages of region '{}' were to be given in ascending runs, and {} pages from "
                              "page {} are none",
                              region.name, run.count, run.first));
    end = run.end();
  }
  if (end <= region.pages) return {};
  return fail(VMEM_ERROR_INVALID_RANGE, fmt::format("region '{}' has {} pages, and page {} was said to be written",
                                                    region.name, region.pages, end - 1));
}

void PublishDesk::finish(Error why, Outbox& out) {
  out.events.emplace_back(PublishEnded{.ticket = orders_.front().ticket, .serial = std::unexpected(std::move(why))});
  if (unsure_ || call_.pending()) abandoned_.insert(orders_.front().region.serial);
  orders_.pop_front();
  call_.drop();
  unsure_ = false;
  read_from_us_ = 0;
}

void PublishDesk::end(const Error& why, Outbox& out) {
  while (!orders_.empty()) finish(why, out);
  for (const Done& done : std::exchange(done_, {}))
    out.events.emplace_back(PublishEnded{.ticket = done.order.ticket, .serial = std::unexpected(why)});
}

std::optional<PublishDesk::Done> PublishDesk::take_done() {
  if (done_.empty()) return std::nullopt;
  Done done = std::move(done_.front());
  done_.pop_front();
  return done;
}

void PublishDesk::settle(const StoredRegion& region) {
  done_.push_back({.order = std::move(orders_.front()), .region = region});
  orders_.pop_front();
  unsure_ = false;
  read_from_us_ = 0;
}

void PublishDesk::post(const StoredName* name) {
  RegionRecord& region = orders_.front().region;
  region.version = name == nullptr ? 1 : name->record.version + 1;
  region.earlier = name == nullptr ? Serial{} : name->record.serial;
  const std::string name_record = json_of(NameRecord{
      .serial = region.serial, .version = region.version, .tenant = region.tenant, .publisher = region.publisher});
  Commit commit{
      .conditions = {{.key = name_key(region.name), .modified = name == nullptr ? Revision{} : name->modified},
                     {.key = region_key(region.serial), .modified = {}},
                     {.key = node_key(context_.self), .modified = context_.self_record}},
      .edits = {{.key = name_key(region.name), .value = name_record, .lease = {}},
                {.key = region_key(region.serial), .value = json_of(region), .lease = {}}}};
  if (name != nullptr && name->record.publisher != context_.self)
    commit.conditions.push_back({.key = node_key(name->record.publisher), .modified = {}});
  call_ = calls_.post(std::move(commit));
}

void PublishDesk::try_front(std::uint64_t now_us, Outbox& out) {
  const PublishOrder& order = orders_.front();
  if (const StoredRegion* const own = context_.index.find(order.region.serial)) return settle(*own);
  if (context_.index.is_unreadable(order.region.name))
    return finish({VMEM_ERROR_INVALID_VALUE, 0,
                   fmt::format("the name '{}' was to be published, and its record {} in the registry is damaged, or of "
                               "a later version of vmem: take another name, or erase that record",
                               order.region.name, name_key(order.region.name))},
                  out);
  const StoredName* const name = context_.index.find_name(order.region.name);
  if (name != nullptr) {
    const bool same = name->record.publisher == context_.self;
    const bool heir =
        name->record.tenant == order.region.tenant && context_.view.over(name->record.publisher, name->modified);
    if (!same && !heir)
      return finish({VMEM_ERROR_IN_USE, 0,
                     fmt::format("the name '{}' was to be published, and node {} of the tenant '{}' has published it "
                                 "(version {}): remove that region first, or take another name",
                                 order.region.name, std::uint64_t(name->record.publisher), name->record.tenant,
                                 name->record.version)},
                    out);
  }
  read_from_us_ = now_us + 1;  // for the next attempt
  post(name);
}

void PublishDesk::handle(const Reply& reply, std::uint64_t now_us) {
  const auto* const commit = std::get_if<Committed>(&reply.what);
  if (commit != nullptr && commit->done) return settle({.record = orders_.front().region, .modified = reply.revision});
  const auto* const error = std::get_if<Error>(&reply.what);
  unsure_ |= error != nullptr && error->status == VMEM_ERROR_TIMEOUT;
  read_from_us_ = now_us;
  poll_.poke();
}

Error PublishDesk::late(const PublishOrder& order) {
  return {VMEM_ERROR_TIMEOUT, 0,
          fmt::format("region '{}' could not be published: the registry did not take its record in time; try again "
                      "once it answers",
                      order.region.name)};
}

bool PublishDesk::expire(std::uint64_t now_us, Outbox& out) {
  if (orders_.empty()) return false;
  const std::size_t before = orders_.size();
  if (now_us >= orders_.front().deadline_us) finish(late(orders_.front()), out);
  // Of one that is not the first no commit was posted.
  for (std::size_t i = 1; i < orders_.size();) {
    if (now_us < orders_[i].deadline_us) {
      ++i;
      continue;
    }
    out.events.emplace_back(PublishEnded{.ticket = orders_[i].ticket, .serial = std::unexpected(late(orders_[i]))});
    orders_.erase(orders_.begin() + std::ptrdiff_t(i));
  }
  return orders_.size() != before;
}

bool PublishDesk::step(std::uint64_t now_us, Outbox& out) {
  if (const std::optional<Reply> reply = call_.take()) {
    handle(*reply, now_us);
    return true;
  }
  if (expire(now_us, out)) return true;
  if (orders_.empty() || call_.pending()) return false;
  const std::uint64_t from_us = std::max(orders_.front().asked_us, read_from_us_);
  if (poll_.fresh_us() < from_us) return false;
  try_front(now_us, out);
  return true;
}

std::uint64_t PublishDesk::due_us() const {
  std::uint64_t due_us = UINT64_MAX;
  for (const PublishOrder& order : orders_) due_us = std::min(due_us, order.deadline_us);
  return due_us;
}

}  // namespace vmem::cluster::directory
