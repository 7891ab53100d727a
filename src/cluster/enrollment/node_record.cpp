#include "cluster/enrollment/node_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/printable.hpp"
#include "cluster/enrollment/json_fields.hpp"

namespace vmem::cluster {
namespace {

constexpr std::string_view kHbmSuffix = "/hbm";

// Earlier versions do not write it.
MappedHbm mapped_of(JsonFields& fields) {
  if (!fields.has("mapped")) return {};
  return {.socket = fields.text("mapped.socket"),
          .gpu = fields.text("mapped.gpu"),
          .bytes = fields.number("mapped.bytes", fields.number("lends.hbm"))};
}

VersionRange versions_of(JsonFields& fields) {
  return {.least = static_cast<std::uint32_t>(fields.number("versions.least", UINT32_MAX)),
          .most = static_cast<std::uint32_t>(fields.number("versions.most", UINT32_MAX))};
}

// Under the lease of the node's record.
Commit order_commit(const Record& node, std::string_view suffix, std::optional<std::string> value) {
  const std::string_view id = std::string_view(node.key).substr(kNodesPrefix.size());
  Edit edit{.key = fmt::format("{}{}{}", kDrainPrefix, id, suffix), .value = std::move(value), .lease = {}};
  if (edit.value) edit.lease = node.lease;
  return {.conditions = {{.key = node.key, .modified = node.modified}}, .edits = {std::move(edit)}};
}

}  // namespace

std::string json_of(const NodeRecord& record) {
  nlohmann::json fields({{"incarnation", static_cast<std::uint64_t>(record.incarnation)},
                         {"addresses", record.addresses},
                         {"transport", record.transport},
                         {"boot", record.boot},
                         {"pids", record.pids},
                         {"pid", record.pid},
                         {"started", record.started},
                         {"kind", record.kind},
                         {"versions", {{"least", record.versions.least}, {"most", record.versions.most}}},
                         {"labels", record.labels},
                         {"lends",
                          {{"memory", record.lends.memory},
                           {"disk", record.lends.disk},
                           {"hbm", record.lends.hbm},
                           {"copies", record.lends.copies}}},
                         {"token", record.token}});
  if (!record.trust.empty()) fields["trust"] = record.trust;
  if (record.mapped.bytes != 0)
    fields["mapped"] = {{"socket", record.mapped.socket}, {"gpu", record.mapped.gpu}, {"bytes", record.mapped.bytes}};
  return record_value(std::move(fields));
}

std::string json_of(const DrainOrder& order) {
  return record_value({{"rate", order.rate}, {"exit", order.exit ? 1 : 0}, {"force", order.force ? 1 : 0}});
}

std::string json_of(const HbmLimit& limit) { return record_value({{"bytes", limit.bytes}}); }

std::string json_of(const Holdings& holdings) {
  return record_value({{"memory", holdings.memory},
                       {"disk", holdings.disk},
                       {"hbm", holdings.hbm},
                       {"copies", holdings.copies},
                       {"leased", holdings.leased},
                       {"hbm_taken", holdings.hbm_taken},
                       {"hbm_mapped", holdings.hbm_mapped},
                       {"hbm_mapper", holdings.hbm_mapper},
                       {"hbm_direct", holdings.hbm_direct},
                       {"hbm_staged", holdings.hbm_staged},
                       {"drains", holdings.drains ? 1 : 0}});
}

DrainOrder parse_drain_order(std::string_view key, std::string_view value) {
  JsonFields fields(key, value);
  const DrainOrder order{
      .rate = fields.number("rate"), .exit = fields.number("exit", 1) != 0, .force = fields.number_or("force", 0) != 0};
  return fields.done() ? order : DrainOrder{};
}

Result<HbmLimit> parse_hbm_limit(std::string_view key, std::string_view value) {
  JsonFields fields(key, value);
  const HbmLimit limit{.bytes = fields.number("bytes")};
  VMEM_TRY(fields.done());
  return limit;
}

Result<Holdings> parse_holdings(std::string_view key, std::string_view value) {
  JsonFields fields(key, value);
  const Holdings holdings{.memory = fields.number("memory"),
                          .disk = fields.number("disk"),
                          .hbm = fields.number_or("hbm", 0),
                          .copies = fields.number("copies"),
                          .leased = fields.number("leased"),
                          .hbm_taken = fields.number_or("hbm_taken", 0),
                          .hbm_mapped = fields.number_or("hbm_mapped", 0),
                          .hbm_mapper = fields.number_or("hbm_mapper", 0),
                          .hbm_direct = fields.number_or("hbm_direct", 0),
                          .hbm_staged = fields.number_or("hbm_staged", 0),
                          .drains = fields.number("drains", 1) != 0};
  VMEM_TRY(fields.done());
  if (holdings.hbm_mapped > holdings.hbm)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("the registry's record '{}' contradicts itself: {} bytes of HBM, {} of them mapped",
                            printable(key), holdings.hbm, holdings.hbm_mapped));
  return holdings;
}

Result<NodeRecord> parse_node_record(std::string_view key, std::string_view value) {
  JsonFields fields(key, value);
  NodeRecord record{.incarnation = Incarnation{fields.number("incarnation")},
                    .addresses = fields.texts("addresses"),
                    .transport = fields.number("transport"),
                    .boot = fields.text("boot"),
                    .pids = fields.number("pids"),
                    .pid = fields.number("pid", INT32_MAX),
                    .started = fields.number("started"),
                    .kind = fields.text("kind"),
                    .versions = versions_of(fields),
                    .trust = fields.has("trust") ? fields.text("trust") : "",
                    .labels = fields.labels("labels"),
                    .lends = {.memory = fields.number("lends.memory"),
                              .disk = fields.number("lends.disk"),
                              .hbm = fields.number("lends.hbm"),
                              .copies = fields.number("lends.copies")},
                    .mapped = mapped_of(fields),
                    .token = fields.text("token")};
  VMEM_TRY(fields.done());
  return record;
}

HbmParts hbm_parts(std::uint64_t lent, std::uint64_t mapped, std::optional<HbmLimit> limit) {
  const std::uint64_t all = limit ? std::min(lent, limit->bytes) : lent;
  const std::uint64_t kept = std::min(mapped, all);
  return {.mapped = kept, .stored = all - kept};
}

std::string node_key(NodeId id) { return fmt::format("{}{}", kNodesPrefix, static_cast<std::uint64_t>(id)); }
std::string drain_key(NodeId id) { return fmt::format("{}{}", kDrainPrefix, static_cast<std::uint64_t>(id)); }
std::string hbm_limit_key(NodeId id) { return fmt::format("{}{}", drain_key(id), kHbmSuffix); }
std::string holds_key(NodeId id) { return fmt::format("{}{}", kHoldsPrefix, static_cast<std::uint64_t>(id)); }

std::optional<NodeId> id_in_key(std::string_view key, std::string_view prefix) {
  std::uint64_t id = 0;
  if (!key.starts_with(prefix) || !parse_decimal(key.substr(prefix.size()), id) || id == 0) return std::nullopt;
  return NodeId{id};
}

std::optional<NodeId> id_in_hbm_limit_key(std::string_view key) {
  if (!key.ends_with(kHbmSuffix)) return std::nullopt;
  return id_in_key(key.substr(0, key.size() - kHbmSuffix.size()), kDrainPrefix);
}

Commit drain_commit(const Record& node, const std::optional<DrainOrder>& order) {
  return order_commit(node, "", order ? std::optional(json_of(*order)) : std::nullopt);
}

Commit hbm_limit_commit(const Record& node, const std::optional<HbmLimit>& limit) {
  return order_commit(node, kHbmSuffix, limit ? std::optional(json_of(*limit)) : std::nullopt);
}

}  // namespace vmem::cluster
