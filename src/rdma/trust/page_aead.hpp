// Protects pages that others keep, with a random key that only this process has: AES-256-GCM (NIST SP
// 800-38D), as a MAC alone (GMAC) or with encryption. Each store has a number of its own, the nonce; number
// and tag stay here. So no lender can change a byte, give back an older content, or one page for another,
// unnoticed; with encryption it cannot read them either.
//
// Any thread. Lack of memory throws std::bad_alloc.
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

class PageAead {
 public:
  enum class Mode : std::uint8_t { authenticate, encrypt };
  static constexpr std::size_t kKeyBytes = 32;
  using Tag = std::array<unsigned char, 16>;
  // Of one store. Kept by the owner of the page only.
  struct Proof {
    std::uint64_t number = 0;  // 0: of nothing
    Tag tag{};
  };

  // With a key of random bytes. Errors: INTERNAL.
  static Result<std::unique_ptr<PageAead>> create(Mode mode);
  // `key`: for tests.
  static Result<std::unique_ptr<PageAead>> create(Mode mode, std::span<const unsigned char, kKeyBytes> key);
  bool encrypts() const noexcept { return mode_ == Mode::encrypt; }

  // For a new store. `stored`: as long as the page, gets what is to be stored, if this encrypts; else unused.
  Proof protect(ConstBytes page, const tiers::PageIdentity& identity, Bytes stored);
  // True if `page` is what `proof` is of; `stored` then is what it was at the time.
  bool protect_again(ConstBytes page, const tiers::PageIdentity& identity, const Proof& proof, Bytes stored) const;
  // False if `page` is not what was stored under this proof. Decrypts in place, also what is not.
  bool recover(Bytes page, const tiers::PageIdentity& identity, const Proof& proof) const;

 private:
  enum class Direction : int { decrypt = 0, encrypt = 1 };
  struct Free {
    void operator()(EVP_CIPHER* cipher) const noexcept;
    void operator()(EVP_CIPHER_CTX* context) const noexcept;
  };
  using Context = std::unique_ptr<EVP_CIPHER_CTX, Free>;
  explicit PageAead(Mode mode) : mode_(mode) {}
  Context begin(Direction direction, const tiers::PageIdentity& identity, std::uint64_t number) const;
  Tag tag_of(ConstBytes page, const tiers::PageIdentity& identity, std::uint64_t number, Bytes stored) const;

  const Mode mode_;
  KeyMemory key_{kKeyBytes};
  std::unique_ptr<EVP_CIPHER, Free> cipher_;
  // A nonce is used once: 2^64 stores are more than a process makes, and the key ends with it.
  std::atomic<std::uint64_t> last_number_ = 0;
};

}  // namespace vmem::rdma
