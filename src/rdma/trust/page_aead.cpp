#include "rdma/trust/page_aead.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "rdma/trust/openssl.hpp"

namespace vmem::rdma {
namespace {

using Nonce96 = std::array<unsigned char, 12>;

const unsigned char* bytes_of(ConstBytes bytes) { return reinterpret_cast<const unsigned char*>(bytes.data()); }
unsigned char* bytes_of(Bytes bytes) { return reinterpret_cast<unsigned char*>(bytes.data()); }

// With a fetched cipher and a key, OpenSSL calls fail only on lack of memory.
void require(bool done) {
  if (!done) throw std::bad_alloc();
}

}  // namespace

void PageAead::Free::operator()(EVP_CIPHER* cipher) const noexcept { free_openssl<EVP_CIPHER_free>(cipher); }
void PageAead::Free::operator()(EVP_CIPHER_CTX* context) const noexcept { free_openssl<EVP_CIPHER_CTX_free>(context); }

Result<std::unique_ptr<PageAead>> PageAead::create(Mode mode) {
  VMEM_ASSIGN(OSSL_LIB_CTX* const library, openssl());
  KeyMemory key(kKeyBytes);
  if (RAND_priv_bytes_ex(library, key.bytes().data(), kKeyBytes, 0) != 1) return openssl_failure("a key for pages");
  return create(mode, std::span<const unsigned char, kKeyBytes>(key.bytes()));
}

Result<std::unique_ptr<PageAead>> PageAead::create(Mode mode, std::span<const unsigned char, kKeyBytes> key) {
  VMEM_ASSIGN(OSSL_LIB_CTX* const library, openssl());
  std::unique_ptr<PageAead> aead(new PageAead(mode));
  aead->cipher_.reset(EVP_CIPHER_fetch(library, "AES-256-GCM", nullptr));
  if (!aead->cipher_) return openssl_failure("AES-256-GCM");
  std::ranges::copy(key, aead->key_.bytes().begin());
  return aead;
}

// The page's identity is associated data in both modes.
PageAead::Context PageAead::begin(Direction direction, const tiers::PageIdentity& identity,
                                  std::uint64_t number) const {
  Nonce96 nonce{};
  std::memcpy(nonce.data(), &number, sizeof(number));
  const auto words = tiers::words_of(identity);
  Context context(EVP_CIPHER_CTX_new());
  int taken = 0;
  require(context != nullptr &&
          EVP_CipherInit_ex2(context.get(), cipher_.get(), key_.bytes().data(), nonce.data(),
                             static_cast<int>(direction), nullptr) == 1 &&
          EVP_CipherUpdate(context.get(), nullptr, &taken, reinterpret_cast<const unsigned char*>(words.data()),
                           sizeof(words)) == 1);
  return context;
}

// GMAC is GCM with the page as associated data and an empty plaintext.
PageAead::Tag PageAead::tag_of(ConstBytes page, const tiers::PageIdentity& identity, std::uint64_t number,
                               Bytes stored) const {
  const Context context = begin(Direction::encrypt, identity, number);
  Tag tag{};
  int taken = 0;
  require(EVP_CipherUpdate(context.get(), encrypts() ? bytes_of(stored) : nullptr, &taken, bytes_of(page),
                           static_cast<int>(page.size())) == 1 &&
          EVP_CipherFinal_ex(context.get(), tag.data(), &taken) == 1 &&
          EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_GET_TAG, static_cast<int>(tag.size()), tag.data()) == 1);
  return tag;
}

PageAead::Proof PageAead::protect(ConstBytes page, const tiers::PageIdentity& identity, Bytes stored) {
  const std::uint64_t number = last_number_.fetch_add(1, std::memory_order_relaxed) + 1;
  return {number, tag_of(page, identity, number, stored)};
}

bool PageAead::protect_again(ConstBytes page, const tiers::PageIdentity& identity, const Proof& proof,
                             Bytes stored) const {
  if (proof.number == 0 || page.size() != identity.bytes) return false;
  const Tag tag = tag_of(page, identity, proof.number, stored);
  return CRYPTO_memcmp(tag.data(), proof.tag.data(), tag.size()) == 0;
}

bool PageAead::recover(Bytes page, const tiers::PageIdentity& identity, const Proof& proof) const {
  if (!encrypts()) return protect_again(page, identity, proof, {});
  if (proof.number == 0 || page.size() != identity.bytes) return false;
  const Context context = begin(Direction::decrypt, identity, proof.number);
  Tag tag = proof.tag;
  int taken = 0;
  require(EVP_CipherUpdate(context.get(), bytes_of(page), &taken, bytes_of(page), static_cast<int>(page.size())) == 1 &&
          EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_SET_TAG, static_cast<int>(tag.size()), tag.data()) == 1);
  return EVP_CipherFinal_ex(context.get(), tag.data(), &taken) == 1;
}

}  // namespace vmem::rdma
