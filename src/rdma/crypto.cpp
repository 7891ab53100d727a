#include "rdma/crypto.hpp"

#include <fmt/format.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include <cstring>
#include <new>
#include <vector>

#include "rdma/trust/openssl.hpp"

namespace vmem::rdma {
namespace {

// A label, and every piece with its length before it: no two lists of pieces give the same bytes.
std::vector<unsigned char> joined(std::string_view label, std::span<const ConstBytes> pieces) {
  std::vector<unsigned char> bytes(sizeof(std::uint64_t) + label.size());
  const auto put = [&](std::size_t at, const void* data, std::uint64_t size) {
    std::memcpy(bytes.data() + at, &size, sizeof(size));
    if (size != 0) std::memcpy(bytes.data() + at + sizeof(size), data, size);
  };
  put(0, label.data(), label.size());
  for (const ConstBytes piece : pieces) {
    const std::size_t at = bytes.size();
    bytes.resize(at + sizeof(std::uint64_t) + piece.size());
    put(at, piece.data(), piece.size());
  }
  return bytes;
}

}  // namespace

struct Crypto::Table {
  using Mac = std::unique_ptr<EVP_MAC, OpenSslDelete<EVP_MAC_free>>;
  OSSL_LIB_CTX* library = nullptr;
  Mac hmac, siphash;
  std::unique_ptr<EVP_MD, OpenSslDelete<EVP_MD_free>> sha256;

  // `parameters`: of the algorithm; ended by OSSL_PARAM_construct_end.
  void mac(const Mac& algorithm, std::span<const unsigned char> key, const OSSL_PARAM* parameters, ConstBytes bytes,
           std::span<unsigned char> out) const {
    const std::unique_ptr<EVP_MAC_CTX, OpenSslDelete<EVP_MAC_CTX_free>> context(EVP_MAC_CTX_new(algorithm.get()));
    std::size_t written = 0;
    require(context != nullptr && EVP_MAC_init(context.get(), key.data(), key.size(), parameters) == 1 &&
            EVP_MAC_update(context.get(), reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()) == 1 &&
            EVP_MAC_final(context.get(), out.data(), &written, out.size()) == 1 && written == out.size());
  }

  // Algorithms that were fetched fail for lack of memory only. Going on without a proof, or with random
  // bytes that are none, would be worse than an end.
  static void require(bool done) {
    if (!done) throw std::bad_alloc();
  }
};

Result<CryptoRef> Crypto::load() {
  auto table = std::make_shared<Table>();
  VMEM_ASSIGN(table->library, openssl());
  table->hmac.reset(EVP_MAC_fetch(table->library, "HMAC", nullptr));
  table->siphash.reset(EVP_MAC_fetch(table->library, "SIPHASH", nullptr));
  table->sha256.reset(EVP_MD_fetch(table->library, "SHA256", nullptr));
  if (!table->hmac || !table->siphash || !table->sha256) return openssl_failure("an algorithm of OpenSSL is missing");
  auto crypto = std::make_shared<Crypto>();
  crypto->table_ = std::move(table);
  return crypto;
}

Nonce Crypto::nonce() const {
  Nonce nonce;
  Table::require(RAND_bytes_ex(table_->library, nonce.data(), nonce.size(), 0) == 1);
  return nonce;
}

std::uint64_t Crypto::random() const {
  std::uint64_t number = 0;
  Table::require(RAND_bytes_ex(table_->library, reinterpret_cast<unsigned char*>(&number), sizeof(number), 0) == 1);
  return number;
}

Tag Crypto::authenticate(const Key& key, std::string_view label, std::span<const ConstBytes> pieces) const {
  char digest[] = "SHA256";
  const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                                   OSSL_PARAM_construct_end()};
  const auto bytes = joined(label, pieces);
  Tag tag;
  table_->mac(table_->hmac, key.bytes, parameters, std::as_bytes(std::span(bytes)), tag);
  return tag;
}

bool Crypto::verify(const Tag& tag, const Key& key, std::string_view label, std::span<const ConstBytes> pieces) const {
  const Tag expected = authenticate(key, label, pieces);
  return CRYPTO_memcmp(tag.data(), expected.data(), tag.size()) == 0;
}

Key Crypto::derive(const Key& key, std::string_view label, std::span<const ConstBytes> pieces) const {
  Key derived;
  derived.bytes = authenticate(key, label, pieces);
  return derived;
}

Key Crypto::hash(ConstBytes bytes) const {
  Key key;
  Table::require(EVP_Digest(bytes.data(), bytes.size(), key.bytes.data(), nullptr, table_->sha256.get(), nullptr) == 1);
  return key;
}

std::uint64_t Crypto::short_tag(const ShortKey& key, ConstBytes bytes) const {
  std::uint64_t tag = 0;
  std::size_t size = sizeof(tag);
  const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_size_t(OSSL_MAC_PARAM_SIZE, &size), OSSL_PARAM_construct_end()};
  table_->mac(table_->siphash, key.bytes, parameters, bytes, {reinterpret_cast<unsigned char*>(&tag), sizeof(tag)});
  return tag;
}

}  // namespace vmem::rdma
