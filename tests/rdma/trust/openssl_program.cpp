// Uses OpenSSL like a node, and again after all exit handlers registered since: rdma_openssl
// SECRET.
#include <openssl/ssl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "rdma/trust/keyring.hpp"
#include "rdma/trust/openssl.hpp"
#include "rdma/trust/tls.hpp"

namespace {

using namespace vmem::rdma;

OSSL_LIB_CTX* library = nullptr;

// After its cleanup, OpenSSL cannot create a context.
void use_at_the_end() {
  SSL_CTX* const context = SSL_CTX_new_ex(library, nullptr, TLS_method());
  std::puts(context != nullptr ? "usable at the end" : "not usable at the end");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  (void)std::atexit(&use_at_the_end);
  const auto crypto = Crypto::load();
  const auto keyring = Keyring::open(argv[1]);
  if (!crypto || !keyring || !TlsContext::create(*crypto, *keyring)) return 1;
  library = *openssl();
  std::puts("started");
  return 0;
}
