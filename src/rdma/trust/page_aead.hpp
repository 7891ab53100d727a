// Protects pages that lenders store, with a random key that only this process has: AES-256-GCM
// (NIST SP 800-38D), as a MAC alone (GMAC) or with encryption. Each store has its own number as the
// nonce; number and tag stay here. So no lender can change a byte, return an older content or swap
// pages unnoticed; with encryption a lender cannot read pages either.
//
// Thread: any. Throws std::bad_alloc on lack of memory.
#pragma once

#include <openssl/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.hpp"
#include "rdma/transport/transport.hpp"
#include "rdma/trust/key_memory.hpp"
#include "tiers/seal.hpp"

namespace vmem::rdma {

class PageAead {
 public:
  enum class Mode : std::uint8_t { authenticate, encrypt };
  static constexpr std::size_t kKeyBytes = 32;
  using Tag = std::array<unsigned char, 16>;
  // Proof of one store. Only the owner of the page keeps it.
  struct Proof {
    std::uint64_t number = 0;  // 0: no proof
    Tag tag{};
  };

  // Generates a random key. Errors: INTERNAL.
  static Result<std::unique_ptr<PageAead>> create(Mode mode);
  // `key`: for tests.
  static Result<std::unique_ptr<PageAead>> create(Mode mode, std::span<const unsigned char, kKeyBytes> key);
  bool encrypts() const noexcept { return mode_ == Mode::encrypt; }

  // Makes the proof of a new store. If encrypts(), writes the ciphertext to `stored`, which is as
  // long as the page; otherwise `stored` is unused.
  Proof protect(ConstBytes page, const tiers::PageIdentity& identity, Bytes stored);
  // The proof under a number of the caller's, for keys that several nodes have. REQUIRES: mode
  // authenticate; under one key, no number is that of two contents.
  Proof prove(ConstBytes page, const tiers::PageIdentity& identity, std::uint64_t number) const {
    return {number, tag_of(page, identity, number, {})};
  }
  // True if `page` has the content of `proof`; `stored` then is the same as from that protect().
  bool protect_again(ConstBytes page, const tiers::PageIdentity& identity, const Proof& proof, Bytes stored) const;
  // False if `page` is not the content stored under `proof`. Decrypts in place, also on a mismatch.
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
  // Each nonce is used once: a process makes fewer than 2^64 stores, and the key ends with it.
  std::atomic<std::uint64_t> last_number_ = 0;
};

}  // namespace vmem::rdma
