#include "cluster/enrollment/json_fields.hpp"

#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "base/printable.hpp"

namespace vmem::cluster {
namespace {

constexpr std::size_t kMostValue = std::size_t{256} << 10;
constexpr std::size_t kShown = 80;

using Json = nlohmann::json;

bool is_short_text(const Json& json) {
  return json.is_string() && json.get_ref<const std::string&>().size() <= kMostText;
}

}  // namespace

JsonFields::JsonFields(std::string_view key, std::string_view value) : key_(key) {
  if (value.size() <= kMostValue) json_ = Json::parse(value, nullptr, false);
  if (!json_.is_object()) {
    status_ = fail(VMEM_ERROR_INVALID_OPTION, fmt::format("the registry's record '{}' is no JSON object: '{}'",
                                                          printable(key), printable(value.substr(0, kShown))));
    return;
  }
  const std::uint64_t format = number("format");
  if (status_ && format != kRecordFormat)
    refuse("format", fmt::format("is {}, and this version of vmem reads format {}", format, kRecordFormat));
}

void JsonFields::refuse(std::string_view name, std::string_view why) {
  if (!status_) return;
  status_ = fail(VMEM_ERROR_INVALID_OPTION,
                 fmt::format("field '{}' of the registry's record '{}' {}", name, printable(key_), why));
}

const Json* JsonFields::find(std::string_view name) {
  if (!status_) return nullptr;
  const Json* place = &json_;
  for (std::string_view rest = name; !rest.empty();) {
    const std::size_t dot = rest.find('.');
    const auto found = place->find(rest.substr(0, dot));
    if (found == place->end()) {
      refuse(name, "is missing");
      return nullptr;
    }
    place = &*found;
    rest = dot == std::string_view::npos ? std::string_view{} : rest.substr(dot + 1);
  }
  return place;
}

// Only of the object itself.
std::uint64_t JsonFields::number_or(std::string_view name, std::uint64_t otherwise) {
  return status_ && json_.contains(name) ? number(name) : otherwise;
}

std::uint64_t JsonFields::number(std::string_view name, std::uint64_t most) {
  const Json* const found = find(name);
  if (found == nullptr) return 0;
  if (found->is_number_unsigned() && found->get<std::uint64_t>() <= most) return found->get<std::uint64_t>();
  refuse(name, fmt::format("is no whole number from 0 to {}", most));
  return 0;
}

std::string JsonFields::text(std::string_view name) {
  const Json* const found = find(name);
  if (found == nullptr) return {};
  if (is_short_text(*found)) return found->get<std::string>();
  refuse(name, fmt::format("is no text of at most {} bytes", kMostText));
  return {};
}

std::vector<std::string> JsonFields::texts(std::string_view name) {
  const Json* const found = find(name);
  if (found == nullptr) return {};
  bool right = found->is_array() && found->size() <= kMostEntries;
  std::vector<std::string> texts;
  for (auto each = found->begin(); right && each != found->end(); ++each) {
    right = is_short_text(*each);
    if (right) texts.push_back(each->get<std::string>());
  }
  if (!right) refuse(name, fmt::format("is no list of at most {} texts", kMostEntries));
  return texts;
}

std::map<std::string, std::string> JsonFields::labels(std::string_view name) {
  const Json* const found = find(name);
  if (found == nullptr) return {};
  bool right = found->is_object() && found->size() <= kMostEntries;
  std::map<std::string, std::string> labels;
  for (auto each = found->begin(); right && each != found->end(); ++each) {
    right = is_short_text(*each) && each.key().size() <= kMostText;
    if (right) labels.emplace(each.key(), each->get<std::string>());
  }
  if (!right) refuse(name, fmt::format("is no object of at most {} texts", kMostEntries));
  return labels;
}

std::string record_value(Json fields) {
  fields["format"] = kRecordFormat;
  return fields.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool parse_decimal(std::string_view text, std::uint64_t& number) {
  if (text.empty() || (text.size() > 1 && text.front() == '0')) return false;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  return code == std::errc{} && end == text.data() + text.size();
}

}  // namespace vmem::cluster
