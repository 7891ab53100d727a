#include "cluster/registry/served/sessions.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace vmem::cluster::served {

const Outcome* Session::find(std::uint64_t order) const {
  const auto found = outcomes.find(order);
  return found == outcomes.end() ? nullptr : &found->second;
}

void Session::carried_out(std::uint64_t order, Outcome outcome) {
  outcomes.insert_or_assign(order, std::move(outcome));
  newest = std::max(newest, order);
  while (stale(outcomes.begin()->first)) outcomes.erase(outcomes.begin());
}

// Drops the session that was unused for longest, of this identity or (null) of any, if it is idle.
bool Sessions::displace(const std::string* identity, std::uint64_t now_us) {
  auto oldest = sessions_.end();
  for (auto each = sessions_.begin(); each != sessions_.end(); ++each) {
    if (identity != nullptr && each->second.place.identity != *identity) continue;
    if (oldest == sessions_.end() || each->second.used_us < oldest->second.used_us) oldest = each;
  }
  if (oldest == sessions_.end() || now_us - oldest->second.used_us < limits_.idle_us) return false;
  drop_upload(oldest->second);
  by_client_.erase({oldest->second.place, oldest->second.client});
  sessions_.erase(oldest);
  return true;
}

Result<std::uint64_t> Sessions::open(const Place& place, std::uint64_t client, std::uint64_t now_us) {
  if (const auto known = by_client_.find({place, client}); known != by_client_.end()) return known->second;
  const auto of_identity = static_cast<std::size_t>(std::ranges::count_if(
      sessions_, [&place](const auto& each) { return each.second.place.identity == place.identity; }));
  const bool room = (of_identity < limits_.of_identity || displace(&place.identity, now_us)) &&
                    (sessions_.size() < limits_.sessions || displace(nullptr, now_us));
  if (!room)
    return fail(
        VMEM_ERROR_OUT_OF_MEMORY,
        fmt::format("the registry has {} clients, {} of them of this identity: at most {} and {} are possible; "
                    "end some, and try again in {} s",
                    sessions_.size(), of_identity, limits_.sessions, limits_.of_identity, limits_.idle_us / 1'000'000));
  Session& session = sessions_[++last_];
  session.place = place;
  session.client = client;
  session.used_us = now_us;
  by_client_[{place, client}] = last_;
  return last_;
}

Session* Sessions::find(const Place& place, const SessionId& id, std::uint64_t now_us) {
  const auto found = sessions_.find(id.number);
  if (id.incarnation != incarnation_ || found == sessions_.end() || found->second.place != place) return nullptr;
  found->second.used_us = now_us;
  return &found->second;
}

void Sessions::drop_upload(Session& session) {
  upload_bytes_ -= session.upload.size();
  session.upload = {};
}

std::size_t Sessions::uploading(const std::string& identity) const {
  std::size_t bytes = 0;
  for (const auto& [number, session] : sessions_)
    if (session.place.identity == identity) bytes += session.upload.size();
  return bytes;
}

// Drops what is incomplete of sessions that were unused for longer, first of the same identity.
bool Sessions::make_room(const Session& session, std::size_t bytes) {
  const auto drop_oldest = [&](bool of_identity) {
    Session* oldest = nullptr;
    for (auto& [number, each] : sessions_) {
      if (&each == &session || each.upload.empty()) continue;
      if (of_identity && each.place.identity != session.place.identity) continue;
      if (oldest == nullptr || each.used_us < oldest->used_us) oldest = &each;
    }
    if (oldest != nullptr) drop_upload(*oldest);
    return oldest != nullptr;
  };
  while (uploading(session.place.identity) + bytes > limits_.identity_upload_bytes)
    if (!drop_oldest(true)) return false;
  while (upload_bytes_ + bytes > limits_.upload_bytes)
    if (!drop_oldest(true) && !drop_oldest(false)) return false;
  return true;
}

// A client sends its large writes one after the other, so one of an older number is over.
std::uint32_t Sessions::add(Session& session, const WritePiece& piece) {
  if (piece.order < session.upload_order) return 0;
  if (piece.order > session.upload_order) {
    drop_upload(session);
    session.upload_order = piece.order;
  }
  const bool fits = piece.offset == session.upload.size() && make_room(session, piece.bytes.size());
  if (fits) {
    session.upload += piece.bytes;
    upload_bytes_ += piece.bytes.size();
  }
  return static_cast<std::uint32_t>(session.upload.size());
}

std::string Sessions::take(Session& session) {
  upload_bytes_ -= session.upload.size();
  return std::exchange(session.upload, {});
}

}  // namespace vmem::cluster::served
