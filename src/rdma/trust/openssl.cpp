#include "rdma/trust/openssl.hpp"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/provider.h>
#include <openssl/ssl.h>

#include <array>

#include "rdma/trust/key_memory.hpp"

namespace vmem::rdma {
namespace {

Result<OSSL_LIB_CTX*> start() {
  if (!keep_openssl_to_this_process())
    return fail(VMEM_ERROR_INTERNAL, "OpenSSL was used before its memory could be kept out of core dumps and children");
  if (OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, nullptr) != 1)
    return openssl_failure("OpenSSL could not be initialised");
  OSSL_LIB_CTX* const context = OSSL_LIB_CTX_new();
  if (context == nullptr || OSSL_PROVIDER_load(context, "default") == nullptr)
    return openssl_failure("OpenSSL's default provider could not be loaded");
  return context;
}

}  // namespace

Result<OSSL_LIB_CTX*> openssl() {
  // Never freed: threads may use it until the process ends.
  static const Result<OSSL_LIB_CTX*> context = start();
  if (openssl_is_wiped())
    return fail(VMEM_ERROR_FORKED,
                "this process was forked from one that had keys, and has none of them: fork before vmem_init, or start "
                "workers with exec");
  return context;
}

std::string openssl_words() {
  std::string words;
  std::array<char, 256> line{};
  while (const unsigned long code = ERR_get_error()) {
    ERR_error_string_n(code, line.data(), line.size());
    words += (words.empty() ? "" : "; ") + std::string(line.data());
  }
  return words.empty() ? "no reason given" : words;
}

std::unexpected<Error> openssl_failure(std::string_view what) {
  return fail(VMEM_ERROR_INTERNAL, fmt::format("{}: {}", what, openssl_words()));
}

}  // namespace vmem::rdma
