// The TLS context of a node with one secret, for targets that feed sessions.
#pragma once

#include "base/log.hpp"
#include "fuzz/memory_file.hpp"
#include "fuzz/socket_pair.hpp"
#include "rdma/trust/tls.hpp"

namespace vmem::fuzz {

// `records_per_key`: records between key updates.
inline std::shared_ptr<rdma::TlsContext> tls_context(std::uint64_t records_per_key) {
  log::set_level(log::Level::off);
  const rdma::CryptoRef crypto = *rdma::Crypto::load();
  const MemoryFile secret(*rdma::make_secret_line(*crypto, "cluster"));
  return *rdma::TlsContext::create(crypto, *rdma::Keyring::open(secret.path()), records_per_key);
}

}  // namespace vmem::fuzz
