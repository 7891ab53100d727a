// What a transport puts before a message's header: whose connection it belongs to, and a tag that only the two ends of that
// connection can make. So what was sent to a former connection, or by somebody who never proved himself, is not taken for a message.
// Payloads are not authenticated: their checksums guard against accidents, the network guards against attackers.
#pragma once

#include <bitset>
#include <cstdint>

#include "rdma/crypto.hpp"

namespace vmem::rdma {

enum class EnvelopeKind : std::uint16_t { hello = 1, message = 2 };

struct Envelope {
  std::uint32_t magic = 0x6b6e696c;  // "link"
  EnvelopeKind kind = EnvelopeKind::message;
  std::uint16_t header_bytes = 0;  // that follow
  std::uint64_t link = 0;          // as the receiver named it in its introduction
  std::uint64_t sequence = 0;      // of this connection and direction; from 1
  std::uint64_t payload_bytes = 0;
  std::uint64_t tag = 0;  // over all before it and the header
};
static_assert(sizeof(Envelope) == 40);
inline constexpr std::size_t kMostSealedBytes = sizeof(Envelope) + kMostHeaderBytes;

// Envelope and header as they are sent.
std::vector<std::byte> seal(const Crypto& crypto, const ShortKey& key, Envelope envelope, ConstBytes header);

struct Opened {
  Envelope envelope;
  ConstBytes header;  // within the bytes that came
};
// Checks the form; errors: INVALID_VALUE. The tag is checked by genuine(), with the key of the connection that was named.
Result<Opened> open(ConstBytes bytes);
bool genuine(const Crypto& crypto, const ShortKey& key, ConstBytes bytes);

// Which sequences have come: each once, in nearly any order.
class SequenceWindow {
 public:
  // Whether it is new; false also for what is too old to tell.
  bool admit(std::uint64_t sequence) noexcept;

 private:
  static constexpr std::uint64_t kWindow = 4 * kMostOutstanding;
  std::uint64_t newest_ = 0;
  std::bitset<kWindow> seen_;  // by sequence modulo kWindow
};

}  // namespace vmem::rdma
