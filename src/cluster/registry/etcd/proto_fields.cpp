#include "cluster/registry/etcd/proto_fields.hpp"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "base/printable.hpp"
#include "cluster/registry/etcd/base64.hpp"

namespace vmem::cluster {
namespace {

using Json = ProtoFields::Json;

std::unexpected<Error> wrong(const char* name, std::string_view what) {
  return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("'{}' is {}", name, what));
}

std::optional<std::int64_t> integer_of(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > std::uint64_t(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
    return std::int64_t(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  const auto* text = value.get_ptr<const std::string*>();
  if (text == nullptr) return std::nullopt;
  std::int64_t number = 0;
  const char* const end = text->data() + text->size();
  const auto [stop, code] = std::from_chars(text->data(), end, number);
  if (code != std::errc{} || stop != end) return std::nullopt;
  return number;
}

}  // namespace

const Json* ProtoFields::find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() ? nullptr : &*found;
}

Result<std::int64_t> ProtoFields::integer(const char* name, std::int64_t least, std::int64_t most) const {
  const Json* const value = find(name);
  const auto number = value == nullptr ? 0 : integer_of(*value);
  if (!number) return wrong(name, "no integer of 64 bits");
  if (*number < least || *number > most) return wrong(name, fmt::format("{}, not {} to {}", *number, least, most));
  return *number;
}

Result<bool> ProtoFields::boolean(const char* name) const {
  const Json* const value = find(name);
  if (value == nullptr) return false;
  if (!value->is_boolean()) return wrong(name, "neither true nor false");
  return value->get<bool>();
}

Result<std::string> ProtoFields::text(const char* name) const {
  const Json* const value = find(name);
  if (value == nullptr) return std::string();
  if (!value->is_string()) return wrong(name, "no string");
  return value->get<std::string>();
}

Result<std::string> ProtoFields::bytes(const char* name) const {
  VMEM_ASSIGN(const std::string encoded, text(name));
  auto decoded = from_base64(encoded);
  if (!decoded) return wrong(name, fmt::format("no base64: '{}'", printable(encoded, 64)));
  return *std::move(decoded);
}

Result<ProtoFields> ProtoFields::object(const char* name) const {
  const Json* const value = find(name);
  if (value == nullptr) return wrong(name, "missing");
  if (!value->is_object()) return wrong(name, "no object");
  return ProtoFields(*value);
}

}  // namespace vmem::cluster
