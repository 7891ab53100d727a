// Keys and short tags: OpenSSL's HMAC-SHA256, SipHash and random bytes.
// Throws std::bad_alloc for lack of memory.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "rdma/transport/transport.hpp"

namespace vmem::rdma {

class Crypto;
using CryptoRef = std::shared_ptr<const Crypto>;

// Key material; wiped on destruction.
template <std::size_t N>
struct KeyBytes {
  std::array<unsigned char, N> bytes{};
  KeyBytes() = default;
  KeyBytes(const KeyBytes&) = default;
  KeyBytes& operator=(const KeyBytes&) = default;
  ~KeyBytes() {
    for (volatile unsigned char& byte : bytes) byte = 0;
  }
};
using Key = KeyBytes<32>;
using ShortKey = KeyBytes<16>;

class Crypto {
 public:
  // Errors: INTERNAL with OpenSSL's message.
  static Result<CryptoRef> load();

  std::uint64_t random() const;
  Key key() const;  // random bytes, not derived
  ShortKey short_key() const;
  // HMAC of the label, with its length prepended.
  Key derive(const Key& key, std::string_view label) const;
  std::uint64_t short_tag(const ShortKey& key, ConstBytes bytes) const;

 private:
  struct Table;
  std::shared_ptr<const Table> table_;
};

}  // namespace vmem::rdma
