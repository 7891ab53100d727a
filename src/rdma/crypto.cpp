#include "rdma/crypto.hpp"

#include <fmt/format.h>
#include <sodium.h>

#include <cstring>

#include "rdma/library.hpp"

namespace vmem::rdma {
namespace {

constexpr const char* kAdvice = "nodes prove who they are with libsodium: install it (Debian, Ubuntu: libsodium23)";

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

#define VMEM_SODIUM_FUNCTIONS(X) \
  X(sodium_init)                 \
  X(randombytes_buf)             \
  X(crypto_auth)                 \
  X(crypto_auth_verify)          \
  X(crypto_generichash)          \
  X(crypto_shorthash)

struct Crypto::Table {
#define VMEM_MEMBER(name) decltype(&::name) name = nullptr;
  VMEM_SODIUM_FUNCTIONS(VMEM_MEMBER)
#undef VMEM_MEMBER
};

Result<CryptoRef> Crypto::load() {
  static_assert(crypto_auth_BYTES == sizeof(Tag) && crypto_auth_KEYBYTES == 32 && crypto_shorthash_KEYBYTES == 16);
  VMEM_ASSIGN(const Library library, open_library("libsodium.so.23", kAdvice));
  auto table = std::make_shared<Table>();
#define VMEM_RESOLVE(name)                                                     \
  {                                                                            \
    VMEM_ASSIGN(void* const function, find_function(library, #name, kAdvice)); \
    table->name = reinterpret_cast<decltype(table->name)>(function);           \
  }
  VMEM_SODIUM_FUNCTIONS(VMEM_RESOLVE)
#undef VMEM_RESOLVE
  if (table->sodium_init() < 0) return fail(VMEM_ERROR_UNSUPPORTED, "libsodium could not be initialised");
  auto crypto = std::make_shared<Crypto>();
  crypto->table_ = std::move(table);
  return crypto;
}

Nonce Crypto::nonce() const {
  Nonce nonce;
  table_->randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

std::uint64_t Crypto::random() const {
  std::uint64_t number = 0;
  table_->randombytes_buf(&number, sizeof(number));
  return number;
}

Tag Crypto::authenticate(const Key& key, std::string_view label, std::span<const ConstBytes> pieces) const {
  const auto bytes = joined(label, pieces);
  Tag tag;
  table_->crypto_auth(tag.data(), bytes.data(), bytes.size(), key.bytes.data());
  return tag;
}

bool Crypto::verify(const Tag& tag, const Key& key, std::string_view label, std::span<const ConstBytes> pieces) const {
  const auto bytes = joined(label, pieces);
  return table_->crypto_auth_verify(tag.data(), bytes.data(), bytes.size(), key.bytes.data()) == 0;
}

Key Crypto::derive(const Key& key, std::string_view label, std::span<const ConstBytes> pieces) const {
  Key derived;
  derived.bytes = authenticate(key, label, pieces);
  return derived;
}

Key Crypto::hash(ConstBytes bytes) const {
  Key key;
  table_->crypto_generichash(key.bytes.data(), key.bytes.size(), reinterpret_cast<const unsigned char*>(bytes.data()),
                             bytes.size(), nullptr, 0);
  return key;
}

std::uint64_t Crypto::short_tag(const ShortKey& key, ConstBytes bytes) const noexcept {
  std::uint64_t tag = 0;
  static_assert(sizeof(tag) == crypto_shorthash_BYTES);
  table_->crypto_shorthash(reinterpret_cast<unsigned char*>(&tag), reinterpret_cast<const unsigned char*>(bytes.data()),
                           bytes.size(), key.bytes.data());
  return tag;
}

}  // namespace vmem::rdma
