// Exchange of two nodes over their authenticated connection: the addresses of their UCX workers,
// and the keys that authenticate messages between these.
#pragma once

#include <cstdint>
#include <vector>

#include "base/node.hpp"
#include "rdma/trust/byte_stream.hpp"
#include "rdma/trust/crypto.hpp"

namespace vmem::rdma {

using UcxAddress = std::vector<std::byte>;  // of a worker; opaque

struct UcxIntroduction {
  std::uint64_t link = 0;   // id that messages to the introducing node carry
  ShortKey key;             // key that authenticates those messages
  bool knows_cuda = false;  // receives payloads that are sent from CUDA memory
  std::vector<UcxAddress> addresses;
};

// Result of the exchange.
struct UcxAcquaintance {
  NodeIdentity node;  // the peer's
  std::uint64_t our_link = 0, their_link = 0;
  ShortKey send_key, receive_key;
};

// One thread.
class UcxExchange {
 public:
  static constexpr std::size_t kMostAddressBytes = 65536;  // of all addresses together

  explicit UcxExchange(const UcxIntroduction& ours);
  // Does all that is possible without waiting. True once both introductions are complete. Errors:
  // LOST; INVALID_VALUE for a malformed introduction.
  Result<bool> advance(ByteStream& stream);
  // True if the stream must become writable first.
  bool wants_write() const noexcept { return wants_write_; }
  // REQUIRES: advance() returned true.
  UcxIntroduction take() { return std::move(theirs_); }

 private:
  Result<bool> write(ByteStream& stream);
  Result<bool> read(ByteStream& stream);
  Status parse_head();
  Status parse_addresses();

  std::vector<std::byte> out_, in_;
  std::size_t sent_ = 0, received_ = 0;
  bool has_head_ = false, wants_write_ = false, read_ = false;
  UcxIntroduction theirs_;
};

}  // namespace vmem::rdma
