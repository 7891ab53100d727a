#include "cluster/directory/region_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/printable.hpp"
#include "cluster/enrollment/json_fields.hpp"

namespace vmem::cluster::directory {
namespace {

constexpr std::uint64_t kMostGranules = std::uint64_t{1} << 40;
constexpr std::uint64_t kMostPageBytes = std::uint64_t{1} << 40;

std::uint64_t number(NodeId id) { return static_cast<std::uint64_t>(id); }

bool is_name_character(char each) {
  return (each >= 'a' && each <= 'z') || (each >= 'A' && each <= 'Z') || (each >= '0' && each <= '9') ||
         std::string_view("._-/").contains(each);
}

std::string text_of(const RegionRecord::Participant& participant) {
  if (participant.node == NodeId{}) return {};
  return fmt::format("{}:{}:{}", number(participant.node), static_cast<std::uint32_t>(participant.session),
                     participant.daemon ? "daemon" : "program");
}

std::optional<RegionRecord::Participant> parse_participant(std::string_view text) {
  if (text.empty()) return RegionRecord::Participant{};
  const std::size_t first = text.find(':'), second = text.find(':', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos) return std::nullopt;
  std::uint64_t node = 0, session = 0;
  const std::string_view kind = text.substr(second + 1);
  if (!parse_decimal(text.substr(0, first), node) || node == 0 ||
      !parse_decimal(text.substr(first + 1, second - first - 1), session) || session == 0 || session > UINT32_MAX ||
      (kind != "daemon" && kind != "program"))
    return std::nullopt;
  return RegionRecord::Participant{.node = NodeId{node}, .session = Session(session), .daemon = kind == "daemon"};
}

std::string hex_of(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

std::optional<std::string> bytes_of(std::string_view hex) {
  std::string bytes;
  for (; hex.size() >= 2; hex.remove_prefix(2)) {
    unsigned char byte = 0;
    const char* const first = &hex.front();
    const auto [end, error] = std::from_chars(first, first + 2, byte, 16);
    if (error != std::errc{} || end != first + 2) return std::nullopt;
    bytes += static_cast<char>(byte);
  }
  return hex.empty() ? std::optional(std::move(bytes)) : std::nullopt;
}

Status damaged(std::string_view key, std::string_view field, std::string_view why) {
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("field '{}' of the registry's record '{}' {}", field, printable(key), why));
}

Status take_participants(std::string_view key, const std::vector<std::string>& texts, RegionRecord& record) {
  if (texts.size() > kMostParticipants) return damaged(key, "participants", "has more than 64 entries");
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::optional<RegionRecord::Participant> participant = parse_participant(texts[i]);
    if (!participant) return damaged(key, "participants", "has an entry that is not NODE:SESSION:KIND");
    const bool twice = participant->node != NodeId{} && record.place_of(participant->node);
    if (twice) return damaged(key, "participants", "names a node twice");
    record.participants[i] = *participant;
  }
  return {};
}

Status check_readers(const std::vector<std::string>& readers) {
  const auto is_name = [](const std::string& name) {
    return !name.empty() && name.size() <= kMostTenant &&
           std::ranges::all_of(name, [](char each) { return each > ' ' && each != ',' && each != 0x7f; });
  };
  if (readers.size() > kMostReaders)
    return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("a region was to have {} tenants as readers; at most {} are "
                                                      "possible, and \"*\" is all of the cluster",
                                                      readers.size(), kMostReaders));
  const auto wrong = std::ranges::find_if_not(readers, is_name);
  if (wrong == readers.end()) return {};
  return fail(VMEM_ERROR_INVALID_VALUE,
              fmt::format("'{}' is no tenant that may read a region: give names of 1 to {} characters as in "
                          "\"team-a,team-b\", without spaces, or \"*\" for all",
                          printable(*wrong), kMostTenant));
}

}  // namespace

std::optional<std::uint32_t> RegionRecord::place_of(NodeId node) const noexcept {
  const auto found = std::ranges::find(participants, node, &Participant::node);
  if (node == NodeId{} || found == participants.end()) return std::nullopt;
  return std::uint32_t(found - participants.begin());
}

std::optional<std::uint32_t> RegionRecord::place_of(NodeId node, Session session) const noexcept {
  const std::optional<std::uint32_t> place = place_of(node);
  return place && participants[*place].session == session ? place : std::nullopt;
}

std::optional<std::uint32_t> RegionRecord::free_place() const noexcept {
  const auto found = std::ranges::find(participants, NodeId{}, &Participant::node);
  if (found == participants.end()) return std::nullopt;
  return std::uint32_t(found - participants.begin());
}

bool may_read(std::string_view who, std::string_view tenant, const std::vector<std::string>& readers) noexcept {
  return who == tenant ||
         std::ranges::any_of(readers, [&](const std::string& each) { return each == kAnyTenant || each == who; });
}

Result<std::vector<std::string>> parse_readers(std::string_view text) {
  std::vector<std::string> readers;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    readers.emplace_back(text.substr(0, comma));
    const bool ends_in_comma = comma + 1 == text.size();
    text.remove_prefix(std::min(comma + 1, text.size()));
    if (ends_in_comma) readers.emplace_back();
  }
  VMEM_TRY(check_readers(readers));
  return readers;
}

Status check_name(std::string_view name) {
  const bool right = !name.empty() && name.size() <= kMostName && std::ranges::all_of(name, is_name_character) &&
                     !std::string_view("._-/").contains(name.front());
  if (right) return {};
  return fail(VMEM_ERROR_INVALID_VALUE,
              fmt::format("'{}' is no name of a region: a name has 1 to {} letters, digits and \"._-/\", and begins "
                          "with a letter or a digit",
                          printable(name.substr(0, kMostName)), kMostName));
}

Status check_region(const RegionRecord& region) {
  const auto refuse = [](std::string_view why) {
    return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("a region cannot be published: {}", why));
  };
  if (region.serial == Serial{}) return refuse("its serial is 0; take one by Enrollment::take_serial");
  if (region.pages == 0 || region.page_bytes == 0 || region.page_bytes > kMostPageBytes)
    return refuse("it has no pages");
  if (region.pages > kMostPages)
    return refuse(fmt::format("it has {} pages; at most {} are possible, use larger ones", region.pages, kMostPages));
  if (region.bytes == 0 || (region.bytes - 1) / region.page_bytes + 1 != region.pages)
    return refuse(
        fmt::format("{} bytes do not fill {} pages of {} bytes", region.bytes, region.pages, region.page_bytes));
  if (region.granules == 0 || region.granules > kMostGranules || region.first_granule > UINT64_MAX - region.granules)
    return refuse(fmt::format("{} granules from {} are no range", region.granules, region.first_granule));
  if (region.copies > kMostCopies)
    return refuse(fmt::format("{} copies are wanted; at most {} are possible", region.copies, kMostCopies));
  if (region.key.size() > kMostKey) return refuse(fmt::format("its key has more than {} bytes", kMostKey));
  if (region.tenant.empty() || region.tenant.size() > kMostTenant) return refuse("its tenant has no proper name");
  return check_readers(region.readers);
}

std::string region_key(Serial serial) {
  return fmt::format("{}{}", kRegionsPrefix, static_cast<std::uint64_t>(serial));
}
std::string name_key(std::string_view name) { return fmt::format("{}{}", kNamesPrefix, name); }

std::optional<Serial> serial_in_key(std::string_view key) {
  std::uint64_t serial = 0;
  if (!key.starts_with(kRegionsPrefix) || !parse_decimal(key.substr(kRegionsPrefix.size()), serial) || serial == 0)
    return std::nullopt;
  return Serial{serial};
}

std::string json_of(const RegionRecord& record) {
  std::vector<std::string> participants;
  for (const RegionRecord::Participant& each : record.participants) participants.push_back(text_of(each));
  while (!participants.empty() && participants.back().empty()) participants.pop_back();
  return record_value({{"name", record.name},
                       {"version", record.version},
                       {"earlier", static_cast<std::uint64_t>(record.earlier)},
                       {"first_granule", record.first_granule},
                       {"granules", record.granules},
                       {"page_bytes", record.page_bytes},
                       {"pages", record.pages},
                       {"bytes", record.bytes},
                       {"tenant", record.tenant},
                       {"readers", record.readers},
                       {"key", hex_of(record.key)},
                       {"publisher", number(record.publisher)},
                       {"copies", record.copies},
                       {"home", number(record.home)},
                       {"term", static_cast<std::uint64_t>(record.term)},
                       {"life", record.removed ? "removed" : "alive"},
                       {"expires_s", record.expires_s},
                       {"invitations", record.invitations},
                       {"participants", participants}});
}

Result<RegionRecord> parse_region(std::string_view key, std::string_view value) {
  const std::optional<Serial> serial = serial_in_key(key);
  if (!serial)
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("the registry's key '{}' names no region", printable(key)));
  JsonFields fields(key, value);
  RegionRecord record;
  record.serial = *serial;
  record.name = fields.text("name");
  record.version = fields.number("version");
  if (fields.has("earlier")) record.earlier = Serial{fields.number("earlier")};
  record.first_granule = fields.number("first_granule");
  record.granules = fields.number("granules");
  record.page_bytes = fields.number("page_bytes");
  record.pages = std::uint32_t(fields.number("pages", UINT32_MAX));
  record.bytes = fields.number("bytes");
  record.tenant = fields.text("tenant");
  if (fields.has("readers")) record.readers = fields.texts("readers");
  record.publisher = NodeId{fields.number("publisher")};
  record.copies = std::uint32_t(fields.number("copies", kMostCopies));
  record.home = NodeId{fields.number("home")};
  record.term = Term{fields.number("term")};
  const std::string key_in_hex = fields.text("key");
  const std::string life = fields.text("life");
  record.expires_s = fields.number("expires_s");
  record.invitations = std::uint32_t(fields.number("invitations", UINT32_MAX - kFirstInvitation));
  const std::vector<std::string> participants = fields.texts("participants");
  VMEM_TRY(fields.done());
  if (life != "alive" && life != "removed")
    return std::unexpected(damaged(key, "life", "is neither alive nor removed").error());
  record.removed = life == "removed";
  const std::optional<std::string> region_key = bytes_of(key_in_hex);
  if (!region_key) return std::unexpected(damaged(key, "key", "is not in hexadecimal digits").error());
  record.key = *region_key;
  VMEM_TRY(take_participants(key, participants, record));
  if (const Status right = check_region(record); !right)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("the registry's record '{}' is damaged: {}", printable(key), right.error().message));
  return record;
}

std::string json_of(const NameRecord& record) {
  return record_value({{"serial", static_cast<std::uint64_t>(record.serial)},
                       {"version", record.version},
                       {"tenant", record.tenant},
                       {"publisher", number(record.publisher)}});
}

Result<NameRecord> parse_name(std::string_view key, std::string_view value) {
  JsonFields fields(key, value);
  NameRecord record{.serial = Serial{fields.number("serial")},
                    .version = fields.number("version"),
                    .tenant = fields.text("tenant"),
                    .publisher = NodeId{fields.number("publisher")}};
  VMEM_TRY(fields.done());
  return record;
}

}  // namespace vmem::cluster::directory
