#include "rdma/trust/crypto.hpp"

#include <fmt/format.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "rdma/trust/openssl.hpp"

namespace vmem::rdma {
namespace {

// The label, prefixed with its length.
std::vector<unsigned char> framed(std::string_view label) {
  const std::uint64_t size = label.size();
  std::vector<unsigned char> bytes(sizeof(size) + label.size());
  std::memcpy(bytes.data(), &size, sizeof(size));
  std::ranges::copy(label, bytes.begin() + sizeof(size));
  return bytes;
}

}  // namespace

struct Crypto::Table {
  using Mac = std::unique_ptr<EVP_MAC, OpenSslDelete<EVP_MAC_free>>;
  OSSL_LIB_CTX* library = nullptr;
  Mac hmac, siphash;

  // `parameters`: of the algorithm, terminated by OSSL_PARAM_construct_end.
  void mac(const Mac& algorithm, std::span<const unsigned char> key, const OSSL_PARAM* parameters, ConstBytes bytes,
           std::span<unsigned char> out) const {
    const std::unique_ptr<EVP_MAC_CTX, OpenSslDelete<EVP_MAC_CTX_free>> context(EVP_MAC_CTX_new(algorithm.get()));
    std::size_t written = 0;
    require(context != nullptr && EVP_MAC_init(context.get(), key.data(), key.size(), parameters) == 1 &&
            EVP_MAC_update(context.get(), reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()) == 1 &&
            EVP_MAC_final(context.get(), out.data(), &written, out.size()) == 1 && written == out.size());
  }

  void fill(std::span<unsigned char> random) const {
    require(!openssl_is_wiped() && RAND_bytes_ex(library, random.data(), random.size(), 0) == 1);
  }

  // A fetched algorithm fails only for lack of memory or in a forked child. Continuing without a
  // proof, or with bytes that are not random, would be worse than throwing.
  static void require(bool done) {
    if (!done) throw std::bad_alloc();
  }
};

Result<CryptoRef> Crypto::load() {
  auto table = std::make_shared<Table>();
  VMEM_ASSIGN(table->library, openssl());
  table->hmac.reset(EVP_MAC_fetch(table->library, "HMAC", nullptr));
  table->siphash.reset(EVP_MAC_fetch(table->library, "SIPHASH", nullptr));
  if (!table->hmac || !table->siphash) return openssl_failure("an algorithm of OpenSSL is missing");
  auto crypto = std::make_shared<Crypto>();
  crypto->table_ = std::move(table);
  return crypto;
}

std::uint64_t Crypto::random() const {
  std::uint64_t number = 0;
  table_->fill(std::span(reinterpret_cast<unsigned char*>(&number), sizeof(number)));
  return number;
}

Key Crypto::key() const {
  Key key;
  table_->fill(key.bytes);
  return key;
}

ShortKey Crypto::short_key() const {
  ShortKey key;
  table_->fill(key.bytes);
  return key;
}

Key Crypto::derive(const Key& key, std::string_view label) const {
  char digest[] = "SHA256";
  const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                                   OSSL_PARAM_construct_end()};
  const std::vector<unsigned char> bytes = framed(label);
  Key derived;
  table_->mac(table_->hmac, key.bytes, parameters, std::as_bytes(std::span(bytes)), derived.bytes);
  return derived;
}

std::uint64_t Crypto::short_tag(const ShortKey& key, ConstBytes bytes) const {
  std::uint64_t tag = 0;
  std::size_t size = sizeof(tag);
  const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_size_t(OSSL_MAC_PARAM_SIZE, &size), OSSL_PARAM_construct_end()};
  table_->mac(table_->siphash, key.bytes, parameters, bytes, {reinterpret_cast<unsigned char*>(&tag), sizeof(tag)});
  return tag;
}

}  // namespace vmem::rdma
