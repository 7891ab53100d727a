// Strict reading of a record whose value is one JSON object with a "format" number. Fields that the
// reader does not ask for are ignored, so that a later version can add some; a field that is
// missing or of another type is an error.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"

namespace vmem::cluster {

inline constexpr std::uint64_t kRecordFormat = 1;
inline constexpr std::size_t kMostText = 512, kMostEntries = 256;

class JsonFields {
 public:
  // `key` is that of the record, for errors.
  JsonFields(std::string_view key, std::string_view value);

  // For fields that earlier versions do not write.
  bool has(std::string_view name) const { return json_.is_object() && json_.contains(name); }

  // Name "a.b": field b of the object a. After an error these return nothing of use.
  std::uint64_t number(std::string_view name, std::uint64_t most = UINT64_MAX);
  // A field that earlier versions do not write.
  std::uint64_t number_or(std::string_view name, std::uint64_t otherwise);
  std::string text(std::string_view name);
  std::vector<std::string> texts(std::string_view name);
  std::map<std::string, std::string> labels(std::string_view name);

  // Errors: INVALID_OPTION, with the first thing that was wrong.
  Status done() const { return status_; }

 private:
  const nlohmann::json* find(std::string_view name);
  void refuse(std::string_view name, std::string_view why);

  const std::string key_;
  nlohmann::json json_;
  Status status_;
};

// `fields` as the value of a record; bytes that are not UTF-8 are replaced.
std::string record_value(nlohmann::json fields);

// Decimal, without sign, leading zeros or anything around it.
bool parse_decimal(std::string_view text, std::uint64_t& number);

}  // namespace vmem::cluster
