// ucx-address NAME=VALUE ... < ADDRESSES
// Gives each address to UCX, as a node with these settings does, and appends the verdict to the
// input. It appends nothing if UCX ends the process. The size of an address (32 bits) precedes it.
//
// UCX parses an address and selects transports for it before it connects. libucp connects by
// uct_ep_create, which it calls through the dynamic linker: this program's connects to nothing. It
// is libuct's own while a worker is made, which connects to itself to copy a GPU's memory.
//
// An address can also state that its device or interface part has length 0. UCX then passes a null
// pointer to the transport, which dereferences it when it connects. To refuse such an address, this
// program also replaces the functions by which libucp asks a transport whether it reaches a peer.
#include <dlfcn.h>
#include <uct/api/uct.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rdma/transport/ucx/ucx_address_check.hpp"

namespace {

using namespace vmem::rdma;

bool stops_connecting = false;
bool would_connect = false;
bool lacks_a_part = false;

// libuct's own version of a function that this program replaces. libucp has loaded libuct.
template <class Function>
Function* of_libuct(const char* name) {
  static void* const library = ::dlopen("libuct.so.0", RTLD_NOW | RTLD_NOLOAD);
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(library, name));
}

// True if addresses of this transport have the part that `say` writes. Their length is in no stable
// structure, so the buffer is filled with 0x00, then with 0xff: `say` changes it at least once.
template <class Address>
bool has_part(uct_iface_h iface, ucs_status_t (*say)(uct_iface_h, Address*)) {
  if (say == nullptr) return false;
  for (const std::byte filling : {std::byte{0x00}, std::byte{0xff}}) {
    alignas(16) std::array<std::byte, 4096> part;
    part.fill(filling);
    if (say(iface, reinterpret_cast<Address*>(part.data())) != UCS_OK) return false;
    if (std::ranges::any_of(part, [&](std::byte byte) { return byte != filling; })) return true;
  }
  return false;
}

// True if a peer's address has every part that the address of `iface` has; else sets lacks_a_part.
bool is_whole(uct_iface_h iface, const uct_device_addr_t* device, const uct_iface_addr_t* interface) {
  using SayDevice = ucs_status_t(uct_iface_h, uct_device_addr_t*);
  using SayInterface = ucs_status_t(uct_iface_h, uct_iface_addr_t*);
  const bool whole = (device != nullptr || !has_part(iface, of_libuct<SayDevice>("uct_iface_get_device_address"))) &&
                     (interface != nullptr || !has_part(iface, of_libuct<SayInterface>("uct_iface_get_address")));
  if (!whole) lacks_a_part = true;
  return whole;
}

// The first members of uct_iface_is_reachable_params_t (uct/api/v2/uct_v2.h, since UCX 1.15). Later
// versions add members behind them; the headers of UCX 1.13 have none of it.
struct ReachableParameters {
  std::uint64_t field_mask;  // one bit per member that is set, in member order
  const uct_device_addr_t* device;
  const uct_iface_addr_t* interface;
};

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

// Uses a new worker, as each channel of a link does. Returns a UcxVerdict or a UCX status.
std::int32_t verdict_on(const UcxContextRef& context, const UcxAddress& address) {
  auto worker = UcxWorker::create(context);
  if (!worker) return static_cast<std::int32_t>(UcxVerdict::not_started);
  would_connect = lacks_a_part = false;
  stops_connecting = true;
  const auto made = UcxEndpoint::create(*worker, address, [](void*, ucp_ep_h, ucs_status_t) {}, nullptr);
  stops_connecting = false;
  if (made) return static_cast<std::int32_t>(UcxVerdict::not_stopped);
  if (lacks_a_part) return UCS_ERR_INVALID_ADDR;
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

extern "C" __attribute__((visibility("default"))) ucs_status_t uct_ep_create(const uct_ep_params_t* params,
                                                                             uct_ep_h* endpoint) {
  if (!stops_connecting) {
    using Create = ucs_status_t(const uct_ep_params_t*, uct_ep_h*);
    Create* const create = of_libuct<Create>("uct_ep_create");
    return create == nullptr ? UCS_ERR_UNSUPPORTED : create(params, endpoint);
  }
  would_connect = true;
  return UCS_ERR_CANCELED;
}

// Up to UCX 1.16.
extern "C" __attribute__((visibility("default"))) int uct_iface_is_reachable(const uct_iface_h iface,
                                                                             const uct_device_addr_t* device,
                                                                             const uct_iface_addr_t* interface) {
  using Reachable = int(uct_iface_h, const uct_device_addr_t*, const uct_iface_addr_t*);
  Reachable* const reachable = of_libuct<Reachable>("uct_iface_is_reachable");
  return reachable != nullptr && is_whole(iface, device, interface) && reachable(iface, device, interface) != 0;
}

// From UCX 1.17 on.
extern "C" __attribute__((visibility("default"))) int uct_iface_is_reachable_v2(const uct_iface_h iface,
                                                                                const ReachableParameters* said) {
  using Reachable = int(uct_iface_h, const ReachableParameters*);
  Reachable* const reachable = of_libuct<Reachable>("uct_iface_is_reachable_v2");
  const auto* const device = (said->field_mask & 1) != 0 ? said->device : nullptr;
  const auto* const interface = (said->field_mask & 2) != 0 ? said->interface : nullptr;
  return reachable != nullptr && is_whole(iface, device, interface) && reachable(iface, said) != 0;
}

int main(int argc, char** argv) {
  const auto addresses = read_addresses();
  const std::int32_t verdict =
      addresses ? verdict_on(*addresses, settings_of(argc, argv)) : static_cast<std::int32_t>(UcxVerdict::not_started);
  return ::write(STDIN_FILENO, &verdict, sizeof(verdict)) == sizeof(verdict) ? 0 : 1;
}
