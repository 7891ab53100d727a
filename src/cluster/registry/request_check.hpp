// The limits that every registry puts on a request, below those of an etcd server with its defaults
// (128 operations and 1.5 MiB, of which base64 takes a quarter).
#pragma once

#include "cluster/registry/registry.hpp"

namespace vmem::cluster {

inline constexpr std::size_t kMostConditions = 128, kMostEdits = 128;
inline constexpr std::size_t kMostCommitBytes = 1u << 20;  // keys and values of one commit
inline constexpr std::uint32_t kMostLeaseSeconds = 1'000'000'000;

// Errors: INVALID_VALUE, if the request breaks a limit, edits a key twice, or asks for a lease of
// 0 s.
Status check_request(const RegistryRequest& request);

}  // namespace vmem::cluster
