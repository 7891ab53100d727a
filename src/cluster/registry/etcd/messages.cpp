#include "cluster/registry/etcd/messages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/printable.hpp"
#include "cluster/registry/etcd/base64.hpp"
#include "cluster/registry/etcd/proto_fields.hpp"

namespace vmem::cluster {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kTokenLetters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~+/=";  // RFC 6750

// ---- requests ----

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string text_of(std::int64_t number) { return std::to_string(number); }

// The first key behind all that begin with `prefix`, which is not all 0xff: it begins with '/'.
std::string end_of_range(std::string prefix) {
  while (static_cast<unsigned char>(prefix.back()) == 0xff) prefix.pop_back();
  ++prefix.back();
  return prefix;
}

class Encoder {
 public:
  explicit Encoder(std::string_view key_prefix) : key_prefix_(key_prefix) {}

  EtcdRequest operator()(const ReadPrefix& read) const {
    const Json body = {{"key", key(read.prefix)},
                       {"range_end", to_base64(end_of_range(std::string(key_prefix_) + read.prefix))}};
    return {"/v3/kv/range", text_of(body)};
  }
  EtcdRequest operator()(const Commit& commit) const {
    Json compare = Json::array(), success = Json::array();
    for (const Condition& each : commit.conditions)
      compare.push_back({{"key", key(each.key)},
                         {"target", "MOD"},
                         {"result", "EQUAL"},
                         {"mod_revision", text_of(std::int64_t(each.modified))}});
    for (const Edit& each : commit.edits) success.push_back(operation(each));
    // Without an operation etcd compares with what this one server has applied so far.
    if (success.empty()) success.push_back({{"request_range", {{"key", key("")}}}});
    return {"/v3/kv/txn", text_of({{"compare", compare}, {"success", success}})};
  }
  EtcdRequest operator()(const GrantLease& grant) const {
    return {"/v3/lease/grant", text_of({{"TTL", text_of(std::int64_t{grant.seconds})}})};
  }
  EtcdRequest operator()(const RenewLease& renew) const { return lease("/v3/lease/keepalive", renew.lease); }
  EtcdRequest operator()(const EndLease& end) const { return lease("/v3/lease/revoke", end.lease); }

 private:
  std::string key(std::string_view key) const { return to_base64(std::string(key_prefix_).append(key)); }
  Json operation(const Edit& edit) const {
    if (!edit.value) return {{"request_delete_range", {{"key", key(edit.key)}}}};
    return {
        {"request_put",
         {{"key", key(edit.key)}, {"value", to_base64(*edit.value)}, {"lease", text_of(std::int64_t(edit.lease))}}}};
  }
  static EtcdRequest lease(const char* path, LeaseId lease) {
    return {path, text_of({{"ID", text_of(std::int64_t(lease))}})};
  }
  const std::string_view key_prefix_;
};

// ---- replies ----

Result<Revision> revision_of(const ProtoFields& reply) {
  VMEM_ASSIGN(const ProtoFields header, reply.object("header"));
  VMEM_ASSIGN(const std::int64_t revision, header.integer("revision", 1));
  return Revision{revision};
}

class Decoder {
 public:
  Decoder(const ProtoFields& reply, std::string_view key_prefix) : reply_(reply), key_prefix_(key_prefix) {}

  Result<Reply> operator()(const ReadPrefix& read) const {
    VMEM_ASSIGN(const bool more, reply_.boolean("more"));
    if (more) return wrong("'more' is set: records are missing");
    Read result;
    if (const Json* const all = reply_.find("kvs")) {
      if (!all->is_array()) return wrong("'kvs' is no array");
      for (const Json& each : *all) {
        VMEM_ASSIGN(Record decoded, record(each, read.prefix));
        if (!result.records.empty() && result.records.back().key >= decoded.key) return wrong("'kvs' is out of order");
        result.records.push_back(std::move(decoded));
      }
    }
    return with_revision(std::move(result));
  }
  Result<Reply> operator()(const Commit&) const {
    VMEM_ASSIGN(const bool done, reply_.boolean("succeeded"));
    return with_revision(Committed{.done = done});
  }
  Result<Reply> operator()(const GrantLease&) const {
    VMEM_ASSIGN(const std::int64_t id, reply_.integer("ID", 1));
    VMEM_ASSIGN(const std::int64_t seconds, reply_.integer("TTL", 1, kMostSeconds));
    return with_revision(Granted{.lease = LeaseId{id}, .seconds = std::uint32_t(seconds)});
  }
  Result<Reply> operator()(const RenewLease& renew) const {
    VMEM_ASSIGN(const ProtoFields result, reply_.object("result"));
    VMEM_ASSIGN(const std::int64_t id, result.integer("ID"));
    if (LeaseId{id} != renew.lease) return wrong(fmt::format("it is about lease {}", id));
    // Negative: the lease has ended, and its records are about to be erased.
    VMEM_ASSIGN(const std::int64_t seconds, result.integer("TTL", -1, kMostSeconds));
    VMEM_ASSIGN(const Revision revision, revision_of(result));
    return made(revision, Renewed{.seconds = std::uint32_t(std::max<std::int64_t>(seconds, 0))});
  }
  Result<Reply> operator()(const EndLease&) const {
    VMEM_TRY(revision_of(reply_));
    return made(Revision{}, Ended{});
  }

 private:
  static constexpr std::int64_t kMostSeconds = std::numeric_limits<std::uint32_t>::max();

  static std::unexpected<Error> wrong(std::string why) { return fail(VMEM_ERROR_INVALID_VALUE, std::move(why)); }
  // Built in place: g++ 12 warns of moved variants.
  template <class What>
  static Result<Reply> made(Revision revision, What what) {
    Result<Reply> reply(std::in_place);
    reply->revision = revision;
    reply->what.template emplace<What>(std::move(what));
    return reply;
  }
  template <class What>
  Result<Reply> with_revision(What what) const {
    VMEM_ASSIGN(const Revision revision, revision_of(reply_));
    return made(revision, std::move(what));
  }
  Result<Record> record(const Json& json, std::string_view prefix) const {
    if (!json.is_object()) return wrong("'kvs' has an element that is no object");
    const ProtoFields fields(json);
    VMEM_ASSIGN(const std::string key, fields.bytes("key"));
    VMEM_ASSIGN(std::string value, fields.bytes("value"));
    VMEM_ASSIGN(const std::int64_t modified, fields.integer("mod_revision", 1));
    VMEM_ASSIGN(const std::int64_t lease, fields.integer("lease"));
    if (!key.starts_with(key_prefix_) || !std::string_view(key).substr(key_prefix_.size()).starts_with(prefix))
      return wrong(fmt::format("'kvs' has key '{}', which was not asked for", printable(key)));
    return Record{.key = key.substr(key_prefix_.size()),
                  .value = std::move(value),
                  .modified = Revision{modified},
                  .lease = LeaseId{lease}};
  }

  const ProtoFields& reply_;
  const std::string_view key_prefix_;
};

// None: the reply refuses nothing.
Result<std::optional<EtcdRefusal>> refusal_in(const ProtoFields& reply, bool refused) {
  const Json* const error = reply.find("error");
  if (error == nullptr && !refused) return std::nullopt;
  // Of a renewal, which etcd answers as a stream.
  const bool stream = error != nullptr && error->is_object();
  const ProtoFields fields = stream ? ProtoFields(*error) : reply;
  const char* const code_name = fields.find("grpc_code") != nullptr ? "grpc_code" : "code";
  VMEM_ASSIGN(const std::int64_t code, fields.integer(code_name, 1, 16));
  VMEM_ASSIGN(std::string message, fields.text(fields.find("message") != nullptr ? "message" : "error"));
  return EtcdRefusal{EtcdCode(code), std::move(message)};
}

Unintelligible unintelligible(long http_status, std::string_view body, std::string_view why) {
  return {fmt::format("HTTP {}, '{}': {}", http_status, printable(body, 128), why)};
}

// `decode` reads the fields of a reply that refuses nothing.
template <class Value, class Decode>
std::variant<Value, EtcdRefusal, Unintelligible> decode_body(long http_status, std::string_view body, Decode decode) {
  try {
    const Json json = Json::parse(body, nullptr, false);
    if (!json.is_object()) return unintelligible(http_status, body, "no JSON object");
    const ProtoFields reply(json);
    auto refusal = refusal_in(reply, http_status != 200);
    if (!refusal) return unintelligible(http_status, body, refusal.error().message);
    if (*refusal) return **std::move(refusal);
    Result<Value> value = decode(reply);
    if (!value) return unintelligible(http_status, body, value.error().message);
    return *std::move(value);
  } catch (const std::bad_alloc&) {
    return Unintelligible{fmt::format("no memory for its {} bytes", body.size())};
  }
}

}  // namespace

std::string key_prefix_of(std::string_view cluster) { return fmt::format("/vmem/{}/", cluster); }

EtcdRequest encode_request(const RegistryRequest& request, std::string_view key_prefix) {
  return std::visit(Encoder(key_prefix), request);
}

EtcdRequest encode_authenticate(std::string_view user, std::string_view password) {
  return {"/v3/auth/authenticate", text_of({{"name", user}, {"password", password}})};
}

bool is_final(EtcdCode code) noexcept {
  switch (code) {
    case EtcdCode::invalid_argument:
    case EtcdCode::not_found:
    case EtcdCode::permission_denied:
    case EtcdCode::resource_exhausted:
    case EtcdCode::failed_precondition:
    case EtcdCode::out_of_range:
    case EtcdCode::unimplemented:
    case EtcdCode::unauthenticated:
      return true;
  }
  return false;  // among them unavailable, unknown and deadline exceeded
}

bool asks_for_token(const EtcdRefusal& refusal) noexcept {
  if (refusal.code == EtcdCode::unauthenticated) return true;
  for (const std::string_view text :
       {"invalid auth token", "user name is empty", "revision of auth store is old", "revision in header is old"}) {
    if (refusal.message.contains(text)) return true;
  }
  return false;
}

EtcdAnswer decode_answer(const RegistryRequest& request, std::string_view key_prefix, long http_status,
                         std::string_view body) {
  return decode_body<Reply>(http_status, body,
                            [&](const ProtoFields& reply) { return std::visit(Decoder(reply, key_prefix), request); });
}

std::variant<EtcdToken, EtcdRefusal, Unintelligible> decode_token(long http_status, std::string_view body) {
  return decode_body<EtcdToken>(http_status, body, [](const ProtoFields& reply) -> Result<EtcdToken> {
    VMEM_ASSIGN(std::string token, reply.text("token"));
    // It goes into a header line.
    if (token.empty() || token.find_first_not_of(kTokenLetters) != std::string::npos)
      return fail(VMEM_ERROR_INVALID_VALUE, "'token' is no token");
    return EtcdToken{std::move(token)};
  });
}

}  // namespace vmem::cluster
