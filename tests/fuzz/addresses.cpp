// Node addresses and lists of them, as users write them.
#include "cluster/peers.hpp"
#include "fuzz/input.hpp"
#include "rdma/transport/socket_address.hpp"

namespace vmem {
namespace {

using fuzz::require;

void check_address(const std::string& text) {
  const auto address = rdma::SocketAddress::parse(text);
  if (!address) return require(!address.error().message.empty(), "a refusal says why");
  const auto again = rdma::SocketAddress::parse(address->text());
  require(again && again->text() == address->text(), "an address is printed as one that means the same");
  require(!address->host().empty() && again->is_loopback() == address->is_loopback(), "an address has a host");
}

void check_peers(std::string_view text) {
  const auto peers = cluster::parse_peers(text);
  if (!peers) return require(!peers.error().message.empty(), "a refusal says why");
  std::string printed;
  for (const cluster::Peer& each : *peers) {
    if (!printed.empty()) printed += ',';
    if (each.id != NodeId{}) printed += std::to_string(std::uint64_t(each.id)) + '@';
    printed += each.address;
  }
  const auto again = cluster::parse_peers(printed);
  require(again && *again == *peers, "a list is printed as one that means the same");
}

}  // namespace
}  // namespace vmem

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  vmem::fuzz::Input input(data, size);
  if (input.flag()) {
    vmem::check_address(std::string(input.text()));
  } else {
    vmem::check_peers(input.text());
  }
  return 0;
}
