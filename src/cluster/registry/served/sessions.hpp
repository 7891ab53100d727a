// The sessions of a server's clients: the outcomes of their latest writes, so that no copy of a
// message makes one be carried out twice, and the write of each that comes in pieces. All is
// bounded. Pure.
#pragma once

#include <list>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "cluster/registry/served/protocol.hpp"

namespace vmem::cluster::served {

// Whose records they are: the proved identity of a connection, and a cluster named by the client.
struct Place {
  std::string identity, cluster;
  auto operator<=>(const Place&) const = default;
};

struct SessionLimits {
  std::size_t sessions = 1024, of_identity = 256;
  std::uint64_t idle_us = 60'000'000;    // a session unused for as long may be displaced
  std::size_t upload_bytes = 32u << 20;  // of all writes that are incomplete
  std::size_t identity_upload_bytes = 8u << 20;
};

struct Session {
  // Null: not carried out, as far as is known.
  const Outcome* find(std::uint64_t order) const;
  // So old that its outcome is forgotten. The client does not wait for it any more.
  bool stale(std::uint64_t order) const noexcept { return newest >= kWriteWindow && order <= newest - kWriteWindow; }
  void carried_out(std::uint64_t order, Outcome outcome);

  // Only Sessions and the functions above change these.
  Place place;
  std::uint64_t client = 0, used_us = 0, newest = 0;
  std::map<std::uint64_t, Outcome> outcomes;  // by order
  std::uint64_t upload_order = 0;             // of the write that comes in pieces
  std::string upload;
};

class Sessions {
 public:
  Sessions(Incarnation incarnation, const SessionLimits& limits) : incarnation_(incarnation), limits_(limits) {}

  // The client's session, perhaps a new one. Errors: OUT_OF_MEMORY
  Result<std::uint64_t> open(const Place& place, std::uint64_t client, std::uint64_t now_us);
  // Null: there is none, or it is of another place or incarnation.
  Session* find(const Place& place, const SessionId& id, std::uint64_t now_us);
  // Adds a piece. Returns the offset of the next one; 0 again if pieces were dropped.
  std::uint32_t add(Session& session, const WritePiece& piece);
  // REQUIRES: add() returned the total.
  std::string take(Session& session);

 private:
  bool displace(const std::string* identity, std::uint64_t now_us);
  bool make_room(const Session& session, std::size_t bytes);
  std::size_t uploading(const std::string& identity) const;
  void drop_upload(Session& session);

  const Incarnation incarnation_;
  const SessionLimits limits_;
  std::map<std::uint64_t, Session> sessions_;
  std::map<std::pair<Place, std::uint64_t>, std::uint64_t> by_client_;
  std::size_t upload_bytes_ = 0;
  std::uint64_t last_ = 0;
};

}  // namespace vmem::cluster::served
