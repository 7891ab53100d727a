// Prefix of a message's header in a transport: the connection, and a tag that only its two ends can
// compute. It rejects messages for an earlier connection or from an unauthenticated sender.
// Payloads are not authenticated: checksums guard against accidents, the network against attackers.
#pragma once

#include <bitset>
#include <cstdint>

#include "rdma/trust/crypto.hpp"

namespace vmem::rdma {

enum class EnvelopeKind : std::uint16_t { hello = 1, message = 2 };

struct Envelope {
  std::uint32_t magic = 0x6b6e696c;  // "link"
  EnvelopeKind kind = EnvelopeKind::message;
  std::uint16_t header_bytes = 0;  // that follow the envelope
  std::uint64_t link = 0;          // chosen by the receiver in its introduction
  std::uint64_t sequence = 0;      // per connection and direction; from 1
  std::uint64_t payload_bytes = 0;
  std::uint64_t tag = 0;  // over all fields before it and the header
};
static_assert(sizeof(Envelope) == 40);
inline constexpr std::size_t kMostSealedBytes = sizeof(Envelope) + kMostHeaderBytes;

// The envelope and the header as sent.
std::vector<std::byte> seal(const Crypto& crypto, const ShortKey& key, Envelope envelope, ConstBytes header);

struct Opened {
  Envelope envelope;
  ConstBytes header;  // within the received bytes
};
// Checks the format, not the tag: genuine() checks that with the key of the named connection.
// Errors: INVALID_VALUE.
Result<Opened> open(ConstBytes bytes);
bool genuine(const Crypto& crypto, const ShortKey& key, ConstBytes bytes);

// Rejects repeated sequences; admits any order within the window.
class SequenceWindow {
 public:
  // False if the sequence was admitted before or is older than the window.
  bool admit(std::uint64_t sequence) noexcept;

 private:
  static constexpr std::uint64_t kWindow = 4 * kMostOutstanding;
  std::uint64_t newest_ = 0;
  std::bitset<kWindow> seen_;  // by sequence modulo kWindow
};

}  // namespace vmem::rdma
