// ucx-address NAME=VALUE ... < ADDRESSES
// Gives each address to UCX, as a node with these settings does, and says behind them what came of it; nothing
// if UCX ends the process. Before each address stands its size (32 bits).
//
// UCX parses an address and selects transports for it before it connects. It connects by uct_ep_create, which
// libucp calls through the dynamic linker: here that is this program's, and connects to nothing.
#include <uct/api/uct.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rdma/ucx_address_check.hpp"

namespace {

using namespace vmem::rdma;

bool would_connect = false;

bool read_all(void* to, std::size_t bytes) {
  auto* next = static_cast<char*>(to);
  while (bytes != 0) {
    const ssize_t got = ::read(STDIN_FILENO, next, bytes);
    if (got <= 0) return false;
    next += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

std::optional<std::vector<UcxAddress>> read_addresses() {
  std::vector<UcxAddress> addresses;
  for (std::uint32_t size = 0; read_all(&size, sizeof(size));) {
    if (size > UcxExchange::kMostAddressBytes || !read_all(addresses.emplace_back(size).data(), size))
      return std::nullopt;
  }
  return addresses;
}

UcxSettings settings_of(int argc, char** argv) {
  UcxSettings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto equals = word.find('=');
    if (equals == std::string::npos) continue;
    settings.emplace_back(word.substr(0, equals), word.substr(equals + 1));
  }
  return settings;
}

// With a worker of its own, as each channel of a link has. A verdict, or UCX's status.
std::int32_t verdict_on(const UcxContextRef& context, const UcxAddress& address) {
  auto worker = UcxWorker::create(context);
  if (!worker) return static_cast<std::int32_t>(UcxVerdict::not_started);
  would_connect = false;
  const auto made = UcxEndpoint::create(*worker, address, [](void*, ucp_ep_h, ucs_status_t) {}, nullptr);
  if (made) return static_cast<std::int32_t>(UcxVerdict::not_stopped);
  return would_connect ? static_cast<std::int32_t>(UcxVerdict::accepted) : made.error().native;
}

std::int32_t verdict_on(const std::vector<UcxAddress>& addresses, const UcxSettings& settings) {
  const auto ucx = Ucx::load();
  if (!ucx) return static_cast<std::int32_t>(UcxVerdict::not_started);
  const auto context = UcxContext::create(*ucx, settings);
  if (!context) return static_cast<std::int32_t>(UcxVerdict::not_started);
  for (const UcxAddress& address : addresses) {
    const std::int32_t verdict = verdict_on(*context, address);
    if (verdict != static_cast<std::int32_t>(UcxVerdict::accepted)) return verdict;
  }
  return static_cast<std::int32_t>(UcxVerdict::accepted);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) ucs_status_t uct_ep_create(const uct_ep_params_t*, uct_ep_h*) {
  would_connect = true;
  return UCS_ERR_CANCELED;
}

int main(int argc, char** argv) {
  const auto addresses = read_addresses();
  const std::int32_t verdict =
      addresses ? verdict_on(*addresses, settings_of(argc, argv)) : static_cast<std::int32_t>(UcxVerdict::not_started);
  return ::write(STDIN_FILENO, &verdict, sizeof(verdict)) == sizeof(verdict) ? 0 : 1;
}
