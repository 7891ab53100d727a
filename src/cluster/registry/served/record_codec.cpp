#include "cluster/registry/served/record_codec.hpp"

#include "cluster/registry/request_check.hpp"

namespace vmem::cluster::served {
namespace {

constexpr std::uint64_t kMostSigned = std::uint64_t{1} << 62;
constexpr std::uint8_t kCommit = 1, kGrant = 2;

void put(ByteWriter& out, Revision revision) { out.number(static_cast<std::uint64_t>(revision)); }
void put(ByteWriter& out, LeaseId lease) { out.number(static_cast<std::uint64_t>(lease)); }
template <class Id>
Id get(ByteReader& in) {
  return Id{static_cast<std::int64_t>(in.number(kMostSigned))};
}

void put(ByteWriter& out, const Commit& commit) {
  out.number(static_cast<std::uint32_t>(commit.conditions.size()));
  for (const Condition& each : commit.conditions) {
    out.text(each.key);
    put(out, each.modified);
  }
  out.number(static_cast<std::uint32_t>(commit.edits.size()));
  for (const Edit& each : commit.edits) {
    out.text(each.key);
    out.number(static_cast<std::uint8_t>(each.value.has_value()));
    if (each.value) out.text(*each.value);
    put(out, each.lease);
  }
}

Edit get_edit(ByteReader& in) {
  Edit edit{.key = in.text(kMostCommitBytes), .value = std::nullopt, .lease = {}};
  if (in.flag()) edit.value = in.text(kMostCommitBytes);
  edit.lease = get<LeaseId>(in);
  return edit;
}

Commit get_commit(ByteReader& in) {
  Commit commit;
  const auto conditions = in.number(static_cast<std::uint32_t>(kMostConditions));
  for (std::uint32_t i = 0; i < conditions && in.ok(); ++i) {
    std::string key = in.text(kMostCommitBytes);
    commit.conditions.push_back({.key = std::move(key), .modified = get<Revision>(in)});
  }
  const auto edits = in.number(static_cast<std::uint32_t>(kMostEdits));
  for (std::uint32_t i = 0; i < edits && in.ok(); ++i) commit.edits.push_back(get_edit(in));
  return commit;
}

}  // namespace

std::string encode_write(const Write& write) {
  ByteWriter out;
  if (const auto* grant = std::get_if<GrantLease>(&write)) {
    out.number(kGrant);
    out.number(grant->seconds);
  } else {
    out.number(kCommit);
    put(out, std::get<Commit>(write));
  }
  return out.take();
}

std::optional<Write> decode_write(std::string_view bytes) {
  ByteReader in(bytes);
  const auto kind = in.number<std::uint8_t>();
  Write write = GrantLease{};
  if (kind == kGrant)
    write = GrantLease{in.number<std::uint32_t>()};
  else if (in.require(kind == kCommit))
    write = get_commit(in);
  if (!in.done()) return std::nullopt;
  return write;
}

void put_records(ByteWriter& out, const std::vector<Record>& records) {
  out.number(static_cast<std::uint32_t>(records.size()));
  for (const Record& each : records) {
    out.text(each.key);
    out.text(each.value);
    put(out, each.modified);
    put(out, each.lease);
  }
}

std::vector<Record> get_records(ByteReader& in, std::size_t most_bytes) {
  std::vector<Record> records;
  const auto count = in.number<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && in.ok(); ++i) {
    Record record;
    record.key = in.text(most_bytes);
    record.value = in.text(most_bytes);
    record.modified = get<Revision>(in);
    record.lease = get<LeaseId>(in);
    in.require(record.modified > Revision{} && (records.empty() || records.back().key < record.key));
    records.push_back(std::move(record));
  }
  return records;
}

std::string encode_records(const std::vector<Record>& records) {
  ByteWriter out;
  put_records(out, records);
  return out.take();
}

std::optional<std::vector<Record>> decode_records(std::string_view bytes) {
  ByteReader in(bytes);
  std::vector<Record> records = get_records(in, kMostCommitBytes);
  if (!in.done()) return std::nullopt;
  return records;
}

}  // namespace vmem::cluster::served
