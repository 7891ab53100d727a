// What two nodes tell each other over the connection on which they have proved who they are: the addresses
// of their UCX workers, and how messages over these are authenticated.
#pragma once

#include <cstdint>
#include <vector>

#include "base/node.hpp"
#include "rdma/crypto.hpp"
#include "rdma/stream/byte_stream.hpp"

namespace vmem::rdma {

using UcxAddress = std::vector<std::byte>;  // of a worker; opaque

struct UcxIntroduction {
  std::uint64_t link = 0;  // messages to the node that says this carry it
  ShortKey key;            // and are authenticated with it
  std::vector<UcxAddress> addresses;
};

// What both know afterwards.
struct UcxAcquaintance {
  NodeIdentity node;  // the peer's
  std::uint64_t our_link = 0, their_link = 0;
  ShortKey send_key, receive_key;
};

// One thread.
class UcxExchange {
 public:
  static constexpr std::size_t kMostAddressBytes = 65536;  // of all

  explicit UcxExchange(const UcxIntroduction& ours);
  // Goes as far as it can without waiting. True once both introductions have been said. Errors: LOST;
  // INVALID_VALUE for what is no introduction.
  Result<bool> advance(stream::ByteStream& stream);
  // It waits for the stream to take bytes.
  bool wants_write() const noexcept { return wants_write_; }
  // REQUIRES: advance() returned true.
  UcxIntroduction take() { return std::move(theirs_); }

 private:
  Result<bool> write(stream::ByteStream& stream);
  Result<bool> read(stream::ByteStream& stream);
  Status parse_head();
  Status parse_addresses();

  std::vector<std::byte> out_, in_;
  std::size_t sent_ = 0, received_ = 0;
  bool has_head_ = false, wants_write_ = false, read_ = false;
  UcxIntroduction theirs_;
};

}  // namespace vmem::rdma
