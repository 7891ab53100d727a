// Base64 as in RFC 4648, section 4, with padding: how etcd's JSON gateway carries bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace vmem::cluster {

std::string to_base64(std::string_view bytes);
// None for what to_base64 cannot have made.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace vmem::cluster
