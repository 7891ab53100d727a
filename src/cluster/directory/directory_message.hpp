// What the nodes of a region say to each other. Messages may be lost, doubled, delayed and
// overtaken: each is idempotent by the receiver's state, and who waits for an answer asks again.
//
// Every message has the region's serial, the term that its sender knows, and the session of the
// participant that it is from or to. Long answers cover a range of pages each, [from, to); who
// asked goes on from there.
//
// Layout: little-endian, no padding. "VD", format 2, kind, serial 8, term 8, session 4, then the
// fields in order; a list begins with its length in 4 bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/node.hpp"
#include "base/status.hpp"
#include "cluster/directory/region_record.hpp"

namespace vmem::cluster::directory {

inline constexpr std::size_t kMostRuns = 512;  // in one message
inline constexpr std::size_t kMostSources = 3;
inline constexpr std::uint32_t kMostRange = 1u << 16;  // pages that one long answer covers

struct Run {
  std::uint32_t first = 0, count = 0;
  std::uint64_t end() const noexcept { return std::uint64_t{first} + count; }
  bool operator==(const Run&) const = default;
};
using Runs = std::vector<Run>;  // ascending, without overlap

enum class PageState : std::uint8_t {
  free,       // never written: reads as zeros, without a source
  published,  // somebody has it
  lost,       // nobody has it
};
enum class Have : std::uint8_t { none, cached, kept, free };

struct SourceRun {
  Run pages;
  PageState state = PageState::published;
  std::vector<NodeId> nodes;  // to be asked in this order
  bool operator==(const SourceRun&) const = default;
};
struct HaveRun {
  Run pages;
  Have have = Have::none;
  bool operator==(const HaveRun&) const = default;
};
enum class Refusal : std::uint8_t { removed, full, tenant };

// From a participant to the home, unless said otherwise.
struct Open {
  std::uint32_t from = 0;
};
struct Opened {  // home: the FREE pages of a range
  std::uint32_t place = 0, from = 0, to = 0;
  Runs free;
};
struct RefusedBy {  // home
  Refusal why{};
};
struct Close {};
struct Closed {};  // home: the receiver has no part in the region
struct Want {
  Run pages;
};
// Home. Void for a page of which the receiver has said no to a later Keep since.
struct Sources {
  std::uint64_t round = 0;
  std::vector<SourceRun> runs;
};
struct Landed {
  Runs pages;
  std::uint64_t round = 0;  // of the Release that this answers. 0: of none
};
// The source did not have them. Answers a Release if the sender is the source.
struct Missing {
  Runs pages;
  NodeId source{};
  std::uint64_t round = 0;
};
// Home: promise not to drop these; fetch them if sources are named. Rounds grow within a term.
struct Keep {
  Runs pages;
  std::uint64_t round = 0;
  std::vector<NodeId> sources;
};
enum class KeepAnswer : std::uint8_t {
  yes,
  no,
  no_room,
  cached,  // it is here, and may be dropped at any time
};
// No, no room: what of these pages is still on its way to this node will be refused.
struct Kept {
  Runs pages;
  std::uint64_t round = 0;
  KeepAnswer answer = KeepAnswer::no;
};
struct Release {  // home: the promise is no longer needed
  Runs pages;
  std::uint64_t round = 0;
};
struct NewTerm {  // home, after a takeover: report the pages from here on
  NodeId home{};
  std::uint32_t from = 0;
};
struct Report {
  std::uint32_t from = 0, to = 0;
  std::vector<HaveRun> runs;
};
struct Leaving {
  std::uint64_t left_us = 0;  // until the sender goes anyway
  std::uint32_t from = 0;
};
struct LeaveDone {  // home: pages of a range of which nobody else is known to have a copy
  std::uint32_t from = 0, to = 0;
  Runs lost;
};
struct Remove {};   // from any node
struct Removed {};  // home: close it
// Home, or a participant: the message had an older term; the header has the newer one.
struct Stale {
  NodeId home{};
};

using Body = std::variant<Open, Opened, RefusedBy, Close, Closed, Want, Sources, Landed, Missing, Keep, Kept, Release,
                          NewTerm, Report, Leaving, LeaveDone, Remove, Removed, Stale>;

struct Message {
  Serial serial{};
  Term term{};
  Session session{};
  Body body;
};

std::string write(const Message& message);
// Errors: INVALID_VALUE, for anything that write() does not make.
Result<Message> parse(std::string_view bytes);
// Whether a message is for the region's home; the others are for participants.
bool is_for_home(const Body& body);
std::string_view kind_name(const Message& message) noexcept;

// Adds a page to runs whose last page is before it.
void append(Runs& runs, std::uint32_t page);
// For people: "pages 0 to 3, 7, 9 to 12", of at most 16 runs.
std::string words_of(const Runs& runs);

}  // namespace vmem::cluster::directory
