// What the registry knows of a joint region: "regions/SERIAL" says where it lies, who may open it
// and which node keeps its directory entry; "names/NAME" says which region has the name. Nothing
// per page is kept there.
//
// The region's home changes both, by conditional commits. A takeover changes home and term.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/node.hpp"
#include "base/status.hpp"
#include "cluster/registry/registry.hpp"

namespace vmem::cluster::directory {

enum class Serial : std::uint64_t {};   // of a region, cluster-wide; never reused. 0: none
enum class Term : std::uint64_t {};     // counts the homes of a region; only grows
enum class Session : std::uint32_t {};  // one opening of a region by a node. 0: none

inline constexpr std::string_view kRegionsPrefix = "regions/", kNamesPrefix = "names/";
inline constexpr std::size_t kMostName = 128, kMostTenant = 128, kMostKey = 64;
inline constexpr std::size_t kMostReaders = 64;
inline constexpr std::string_view kAnyTenant = "*";
inline constexpr std::uint32_t kMostParticipants = 64, kMostCopies = 8;
inline constexpr std::uint32_t kMostPages = 1u << 25;  // a home keeps 24 bytes for each
// Sessions from here on are given by homes, to daemons that they ask for copies. Those below are
// counted by the nodes that open.
inline constexpr std::uint32_t kFirstInvitation = 1u << 31;
constexpr bool is_invitation(Session session) { return static_cast<std::uint32_t>(session) >= kFirstInvitation; }

struct RegionRecord {
  struct Participant {
    NodeId node{};  // 0: a free place
    Session session{};
    bool daemon = false;
    bool operator==(const Participant&) const = default;
  };
  Serial serial{};
  std::string name;
  std::uint64_t version = 1;  // counts what was published under the name
  Serial earlier{};           // that of the version before, whose pages may be the same. 0: none
  std::uint64_t first_granule = 0, granules = 0;
  std::uint64_t page_bytes = 0, bytes = 0;
  std::uint32_t pages = 0;
  std::string tenant;
  std::vector<std::string> readers;  // other tenants that may open it; kAnyTenant: all
  std::string key;                   // proves pages; for the data plane
  NodeId publisher{};
  std::uint32_t copies = 0;
  NodeId home{};
  Term term{1};
  bool removed = false;
  std::uint64_t expires_s = 0;  // Unix time. 0: never
  std::uint32_t invitations = 0;
  std::array<Participant, kMostParticipants> participants{};  // a page's bitmaps have these places
  bool operator==(const RegionRecord&) const = default;

  std::optional<std::uint32_t> place_of(NodeId node) const noexcept;
  std::optional<std::uint32_t> place_of(NodeId node, Session session) const noexcept;
  std::optional<std::uint32_t> free_place() const noexcept;
};

// Whether nodes of `who` may open a region of `tenant` that has these readers.
bool may_read(std::string_view who, std::string_view tenant, const std::vector<std::string>& readers) noexcept;
// Names of tenants, with commas between them. Errors: INVALID_VALUE, saying which is none.
Result<std::vector<std::string>> parse_readers(std::string_view text);

struct NameRecord {
  Serial serial{};
  std::uint64_t version = 1;
  std::string tenant;
  NodeId publisher{};
  bool operator==(const NameRecord&) const = default;
};

// Errors: INVALID_VALUE, naming the limit. Names have letters, digits and "._-/", and begin with a
// letter or a digit.
Status check_name(std::string_view name);
// What a region must be. Errors: INVALID_VALUE.
Status check_region(const RegionRecord& region);

std::string region_key(Serial serial);
std::string name_key(std::string_view name);
std::optional<Serial> serial_in_key(std::string_view key);

std::string json_of(const RegionRecord& record);
std::string json_of(const NameRecord& record);
// Errors: INVALID_OPTION, naming record and field.
Result<RegionRecord> parse_region(std::string_view key, std::string_view value);
Result<NameRecord> parse_name(std::string_view key, std::string_view value);

}  // namespace vmem::cluster::directory
