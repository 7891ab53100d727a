#include "cluster/peers.hpp"

#include <fmt/format.h>

#include <charconv>

namespace vmem::cluster {
namespace {

bool parse_number(std::string_view text, std::uint64_t& number) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  return code == std::errc{} && end == text.data() + text.size();
}

Result<Peer> parse_peer(std::string_view entry) {
  const auto refuse = [&](std::string_view why) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("'{}' {}; accepted: HOST:PORT or ID@HOST:PORT, separated by commas", entry, why));
  };
  Peer peer;
  std::string_view address = entry;
  if (const auto at = entry.find('@'); at != std::string_view::npos) {
    std::uint64_t id = 0;
    if (!parse_number(entry.substr(0, at), id) || id == 0) return refuse("has no node id, a number from 1, before @");
    peer.id = NodeId{id};
    address = entry.substr(at + 1);
  }
  const auto colon = address.rfind(':');
  std::uint64_t port = 0;
  if (colon == std::string_view::npos || colon == 0) return refuse("has no host and port");
  if (!parse_number(address.substr(colon + 1), port) || port == 0 || port > 65535)
    return refuse("has no port from 1 to 65535");
  const bool bracketed = address.front() == '[' && address[colon - 1] == ']';
  if (!bracketed && address.substr(0, colon).find(':') != std::string_view::npos)
    return refuse("has an IPv6 address without brackets");
  peer.address = address;
  return peer;
}

}  // namespace

Result<std::vector<Peer>> parse_peers(std::string_view text) {
  std::vector<Peer> peers;
  while (!text.empty()) {
    const auto comma = text.find(',');
    VMEM_ASSIGN(Peer peer, parse_peer(text.substr(0, comma)));
    peers.push_back(std::move(peer));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
    if (text.empty()) return fail(VMEM_ERROR_INVALID_OPTION, "the list of nodes ends in a comma");
  }
  return peers;
}

}  // namespace vmem::cluster
