// The messages between a ServedRegistry and a RegistryServer. Each question has one answer; both
// may be lost, copied and overtaken.
//
// - Reads, renewals and ends of leases may be repeated at will.
// - A write (a commit or a grant) belongs to a session, which the server opens for a client and
//   which ends with the server. Within it writes are numbered, and the server keeps the outcomes
//   of the latest kWriteWindow. So no write is carried out twice, however often its messages come.
// - What is larger than a message goes in pieces. A write is sent from offset 0 on. A read is
//   fetched by offset, as of one revision; if that revision is gone, the server begins anew with
//   the present one.
//
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "cluster/registry/registry.hpp"

namespace vmem::cluster::served {

inline constexpr std::uint16_t kProtocolVersion = 1;
// The smallest message of the transports that carry this is 64 KiB.
inline constexpr std::size_t kMostMessageBytes = 60u << 10;
inline constexpr std::size_t kPieceBytes = 56u << 10;
inline constexpr std::size_t kMostPrefixBytes = 2048, kMostClusterBytes = 128, kMostTextBytes = 2048;
// A client has numbers in use of which the highest is less than this above the lowest.
inline constexpr std::uint64_t kWriteWindow = 64;

// A run of a server; grows from run to run.
enum class Incarnation : std::uint64_t {};  // 0: none

struct SessionId {
  Incarnation incarnation{};
  std::uint64_t number = 0;  // 0: none
  auto operator<=>(const SessionId&) const = default;
};

struct Open {
  bool operator==(const Open&) const = default;
};
// Of a write that encode_write made. Those of one write have one total.
struct WritePiece {
  SessionId session;
  std::uint64_t order = 0;  // in its session; from 1 on
  std::uint32_t total = 0, offset = 0;
  std::string bytes;
  bool operator==(const WritePiece&) const = default;
};
// Of the records under the prefix, as encode_records makes them.
struct FetchPage {
  std::string prefix;
  Revision revision{};  // with offset 0: any
  std::uint32_t offset = 0;
  bool operator==(const FetchPage&) const = default;
};
struct Renew {
  LeaseId lease{};
  bool operator==(const Renew&) const = default;
};
struct End {
  LeaseId lease{};
  bool operator==(const End&) const = default;
};

struct Question {
  std::uint64_t client = 0;  // random; tells an answer to an earlier process from one to this
  std::uint64_t number = 0;  // of the request, chosen by the client; repetitions have the same
  std::string cluster;
  std::variant<Open, WritePiece, FetchPage, Renew, End> what;
  bool operator==(const Question&) const = default;
};

struct Opened {
  std::uint64_t session = 0;
};
struct Taken {
  std::uint32_t next_offset = 0;
};
struct Page {
  Revision revision{};
  std::uint32_t total = 0, offset = 0;
  std::string bytes;
};
// For a write it is kept: another copy of the question gets the same.
struct Outcome {
  Revision revision{};
  std::variant<Error, Committed, Granted, Renewed, Ended> what;
};
// This question was not carried out, but an earlier copy of it may have been.
struct Declined {
  Error why;
};
struct NoSession {};

struct Answer {
  std::uint64_t client = 0, number = 0;  // of the question
  Incarnation incarnation{};
  std::variant<Opened, Taken, Page, Outcome, Declined, NoSession> what;
};

// What every version of the protocol has at the begin of a message.
struct Header {
  std::uint16_t version = 0;
  std::uint64_t client = 0, number = 0;
};

std::string encode(const Question& question);
std::string encode(const Answer& answer);
std::optional<Header> decode_header(std::string_view bytes);
// None: not of this version of the protocol, damaged, or beyond its limits.
std::optional<Question> decode_question(std::string_view bytes);
std::optional<Answer> decode_answer(std::string_view bytes);

// Whether the name of a cluster has 1 to kMostClusterBytes letters, digits, '.', '_' and '-'.
bool is_cluster_name(std::string_view name);

}  // namespace vmem::cluster::served
