#include "rdma/trust/page_mac.hpp"

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

// What was fetched and has a key fails for lack of memory only.
void require(bool done) {
  if (!done) throw std::bad_alloc();
}

}  // namespace

void PageMac::Free::operator()(EVP_CIPHER* cipher) const noexcept { EVP_CIPHER_free(cipher); }

Result<std::unique_ptr<PageMac>> PageMac::create() {
  VMEM_ASSIGN(OSSL_LIB_CTX* const library, openssl());
  KeyMemory key(kKeyBytes);
  if (RAND_priv_bytes_ex(library, key.bytes().data(), kKeyBytes, 0) != 1) return openssl_failure("a key for pages");
  return create(std::span<const unsigned char, kKeyBytes>(key.bytes()));
}

Result<std::unique_ptr<PageMac>> PageMac::create(std::span<const unsigned char, kKeyBytes> key) {
  VMEM_ASSIGN(OSSL_LIB_CTX* const library, openssl());
  std::unique_ptr<PageMac> mac(new PageMac);
  mac->cipher_.reset(EVP_CIPHER_fetch(library, "AES-256-GCM", nullptr));
  if (!mac->cipher_) return openssl_failure("AES-256-GCM");
  std::ranges::copy(key, mac->key_.bytes().begin());
  return mac;
}

// GMAC: GCM with everything as associated data, and nothing to encrypt.
std::array<unsigned char, 16> PageMac::tag_of(ConstBytes page, const tiers::PageIdentity& identity,
                                              std::uint64_t number) const {
  Nonce96 nonce{};
  std::memcpy(nonce.data(), &number, sizeof(number));
  const std::array<std::uint64_t, 4> words{std::uint64_t{identity.page.home} << 32 | identity.page.granule,
                                           identity.version, identity.bytes, identity.tenant};
  const std::unique_ptr<EVP_CIPHER_CTX, OpenSslDelete<EVP_CIPHER_CTX_free>> context(EVP_CIPHER_CTX_new());
  std::array<unsigned char, 16> tag{};
  int taken = 0;
  require(context != nullptr &&
          EVP_EncryptInit_ex2(context.get(), cipher_.get(), key_.bytes().data(), nonce.data(), nullptr) == 1 &&
          EVP_EncryptUpdate(context.get(), nullptr, &taken, reinterpret_cast<const unsigned char*>(words.data()),
                            sizeof(words)) == 1 &&
          EVP_EncryptUpdate(context.get(), nullptr, &taken, bytes_of(page), static_cast<int>(page.size())) == 1 &&
          EVP_EncryptFinal_ex(context.get(), tag.data(), &taken) == 1 &&
          EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_GET_TAG, static_cast<int>(tag.size()), tag.data()) == 1);
  return tag;
}

PageMac::Proof PageMac::prove(ConstBytes page, const tiers::PageIdentity& identity) {
  const std::uint64_t number = last_number_.fetch_add(1, std::memory_order_relaxed) + 1;
  return {number, tag_of(page, identity, number)};
}

bool PageMac::holds(ConstBytes page, const tiers::PageIdentity& identity, const Proof& proof) const {
  if (proof.number == 0 || page.size() != identity.bytes) return false;
  const auto tag = tag_of(page, identity, proof.number);
  return CRYPTO_memcmp(tag.data(), proof.tag.data(), tag.size()) == 0;
}

}  // namespace vmem::rdma
