// Reads the fields of a JSON object as proto3 maps them: a field with the default value may be
// absent, 64-bit integers are strings, bytes are base64. Errors say which field is wrong.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.hpp"

namespace vmem::cluster {

class ProtoFields {
 public:
  using Json = nlohmann::json;
  // REQUIRES: `object` is a JSON object and outlives this.
  explicit ProtoFields(const Json& object) : object_(object) {}

  // Null if the field is absent.
  const Json* find(const char* name) const;
  // A string of decimal digits or a number. Absent: 0.
  Result<std::int64_t> integer(const char* name, std::int64_t least = 0,
                               std::int64_t most = std::numeric_limits<std::int64_t>::max()) const;
  // Absent: false.
  Result<bool> boolean(const char* name) const;
  // Absent: "".
  Result<std::string> text(const char* name) const;
  Result<std::string> bytes(const char* name) const;
  // Must be there.
  Result<ProtoFields> object(const char* name) const;

 private:
  const Json& object_;
};

}  // namespace vmem::cluster
