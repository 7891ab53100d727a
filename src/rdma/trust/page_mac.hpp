// Authenticates pages that others keep: GMAC (AES-256, NIST SP 800-38D) with a random key that only this
// process has. Each store has a number of its own, the nonce; number and tag stay here. So no lender can
// change a byte, give back an older content, or one page for another, unnoticed. It can read them.
//
// Any thread.
#pragma once

#include <openssl/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.hpp"
#include "rdma/transport.hpp"
#include "rdma/trust/key_memory.hpp"
#include "tiers/seal.hpp"

namespace vmem::rdma {

class PageMac {
 public:
  static constexpr std::size_t kKeyBytes = 32;
  // Of one store. Kept by the owner of the page only.
  struct Proof {
    std::uint64_t number = 0;  // 0: of nothing
    std::array<unsigned char, 16> tag{};
  };

  // With a key of random bytes. Errors: INTERNAL.
  static Result<std::unique_ptr<PageMac>> create();
  // `key`: for tests.
  static Result<std::unique_ptr<PageMac>> create(std::span<const unsigned char, kKeyBytes> key);

  // Lack of memory throws std::bad_alloc.
  Proof prove(ConstBytes page, const tiers::PageIdentity& identity);
  bool holds(ConstBytes page, const tiers::PageIdentity& identity, const Proof& proof) const;

 private:
  PageMac() = default;
  std::array<unsigned char, 16> tag_of(ConstBytes page, const tiers::PageIdentity& identity,
                                       std::uint64_t number) const;

  KeyMemory key_{kKeyBytes};
  struct Free {
    void operator()(EVP_CIPHER* cipher) const noexcept;
  };
  std::unique_ptr<EVP_CIPHER, Free> cipher_;
  // A nonce is used once: 2^64 stores are more than a process makes, and the key ends with it.
  std::atomic<std::uint64_t> last_number_ = 0;
};

}  // namespace vmem::rdma
