#include "cluster/registry/etcd/address.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "base/option_parse.hpp"
#include "base/printable.hpp"

namespace vmem::cluster {
namespace {

constexpr std::string_view kAccepted = "etcd://[USER[:PASSWORD]@]HOST:PORT[,HOST:PORT...]/NAME, or etcds:// for TLS";
constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

std::unexpected<Error> wrong(std::string why) { return fail(VMEM_ERROR_INVALID_OPTION, std::move(why)); }

bool only(std::string_view text, std::string_view others) {
  return std::ranges::all_of(text, [&](char c) { return kLetters.contains(c) || others.contains(c); });
}

// The text with everything hidden that can be a part of the password, in a malformed text too.
std::string without_password(std::string_view text) {
  const auto scheme = text.find("://");
  const std::size_t begin = scheme == std::string_view::npos ? 0 : scheme + 3;
  const auto at = text.rfind('@');
  const auto colon = text.find(':', begin);
  if (at == std::string_view::npos || colon >= at) return printable(text);
  return fmt::format("{}:***{}", printable(text.substr(0, colon)), printable(text.substr(at)));
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const std::string_view digits = text.substr(i + 1, 2);
    unsigned value = 0;
    const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (digits.size() != 2 || code != std::errc{} || end != digits.data() + 2) return std::nullopt;
    decoded += static_cast<char>(value);
    i += 2;
  }
  return decoded;
}

Status parse_user(std::string_view text, EtcdAddress& address) {
  const auto colon = std::min(text.find(':'), text.size());
  auto user = percent_decoded(text.substr(0, colon));
  auto password = percent_decoded(text.substr(std::min(colon + 1, text.size())));
  if (!user || !password) return wrong("has a % without two hexadecimal digits in the user or the password");
  if (user->empty()) return wrong("has an empty user before @");
  address.user = *std::move(user);
  address.password = *std::move(password);
  return {};
}

bool is_host(std::string_view host) {
  if (host.starts_with('[') && host.ends_with(']')) {
    const std::string_view inside = host.substr(1, host.size() - 2);
    return inside.contains(':') && inside.find_first_not_of("0123456789abcdefABCDEF:.") == std::string_view::npos;
  }
  return !host.empty() && only(host, ".-_");
}

Status check_endpoint(std::string_view endpoint) {
  const auto colon = endpoint.rfind(':');
  if (colon == std::string_view::npos || endpoint.ends_with(']'))
    return wrong(fmt::format("has no port in '{}'", printable(endpoint)));
  const std::string_view host = endpoint.substr(0, colon);
  if (host.contains(':') && !host.starts_with('['))
    return wrong(fmt::format("has an IPv6 address without brackets in '{}'", printable(endpoint)));
  if (!is_host(host)) return wrong(fmt::format("has no host in '{}'", printable(endpoint)));
  const auto port = parse_count(endpoint.substr(colon + 1), 65535);
  if (!port || *port == 0) return wrong(fmt::format("has no port from 1 to 65535 in '{}'", printable(endpoint)));
  return {};
}

Status parse_endpoints(std::string_view text, EtcdAddress& address) {
  for (const std::string_view endpoint : split_at_commas(text)) {
    VMEM_TRY(check_endpoint(endpoint));
    address.endpoints.emplace_back(endpoint);
  }
  if (address.endpoints.size() > kMostEndpoints)
    return wrong(fmt::format("has more than {} endpoints", kMostEndpoints));
  return {};
}

// `endpoints`: all before the last slash. If they are good up to an earlier one, the name has it.
Status check_name(std::string_view endpoints, std::string_view last_part) {
  EtcdAddress ignored;
  const auto slash = endpoints.find('/');
  if (slash == std::string_view::npos || !parse_endpoints(endpoints.substr(0, slash), ignored)) return {};
  return wrong(fmt::format("has a '/' in the cluster's name '{}/{}', which may have letters, digits, '.', '_' and '-'",
                           printable(endpoints.substr(slash + 1)), last_part));
}

Result<EtcdAddress> parse(std::string_view text) {
  EtcdAddress address;
  address.tls = text.starts_with("etcds://");
  if (!address.tls && !text.starts_with("etcd://")) return wrong("does not begin with etcd:// or etcds://");
  text.remove_prefix(text.find("://") + 3);
  const auto slash = text.rfind('/');
  if (slash == std::string_view::npos) return wrong("has no /NAME of a cluster at the end");
  address.cluster = text.substr(slash + 1);
  if (address.cluster.empty() || !only(address.cluster, "._-"))
    return wrong("has no cluster name of letters, digits, '.', '_' and '-' at the end");
  text = text.substr(0, slash);
  if (const auto at = text.rfind('@'); at != std::string_view::npos) {
    VMEM_TRY(parse_user(text.substr(0, at), address));
    text.remove_prefix(at + 1);
  }
  VMEM_TRY(check_name(text, address.cluster));
  VMEM_TRY(parse_endpoints(text, address));
  return address;
}

}  // namespace

Result<EtcdAddress> parse_etcd_address(std::string_view text) {
  auto address = parse(text);
  if (address) return address;
  return wrong(fmt::format("'{}' {}; accepted: {}", without_password(text), address.error().message, kAccepted));
}

}  // namespace vmem::cluster
