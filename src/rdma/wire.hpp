// What every request and reply between nodes begins with: 64 bytes of fixed layout, little-endian, with a checksum over all of
// them and over the payload. (client, epoch, sequence) names a request: the same one that comes twice is answered from the
// ReplyCache.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "base/node.hpp"
#include "rdma/transport.hpp"

namespace vmem::rdma::wire {

static_assert(std::endian::native == std::endian::little, "headers are sent as they lie in memory");

inline constexpr std::uint32_t kMagic = 0x4d454d56;  // "VMEM"
inline constexpr std::uint16_t kProtocolVersion = 3;
inline constexpr std::uint64_t kMostPayloadBytes = std::uint64_t{1} << 30;

// Requests have even numbers, their replies the odd number after.
enum class Kind : std::uint16_t {
  ping = 2,
  pong = 3,
  allocate = 4,
  allocated = 5,
  release = 6,
  released = 7,
  put = 8,
  put_done = 9,
  fetch = 10,
  fetched = 11,
  end = 12,
  ended = 13,
};
std::string_view kind_name(Kind kind) noexcept;
constexpr bool is_reply(Kind kind) noexcept { return (static_cast<std::uint16_t>(kind) & 1) != 0; }

inline constexpr std::uint64_t kUnasked = ~std::uint64_t{0};  // the sequence of what answers no request

struct RequestId {
  std::uint64_t client = 0;    // the node that asks
  Epoch epoch{};               // without a directory that numbers them: the client's incarnation
  std::uint64_t sequence = 0;  // of this client in this epoch; from 1
  friend bool operator==(const RequestId&, const RequestId&) = default;
};

struct Header {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kProtocolVersion;
  Kind kind = Kind::ping;
  RequestId request;
  std::uint64_t payload_bytes = 0;
  std::uint64_t payload_checksum = 0;  // 0 and ignored without a payload, and where the body has the page's seal
  std::uint32_t body_bytes = 0;        // what follows the header in the message's header
  std::uint32_t reserved = 0;          // 0
  std::uint64_t checksum = 0;          // over all before it, and the body
};
static_assert(sizeof(RequestId) == 24 && sizeof(Header) == 64 && alignof(Header) == 8);
static_assert(offsetof(Header, request) == 8 && offsetof(Header, payload_bytes) == 32 &&
              offsetof(Header, checksum) == 56);
inline constexpr std::size_t kMostBodyBytes = kMostHeaderBytes - sizeof(Header);

// XXH3, 64 bits.
std::uint64_t checksum(ConstBytes bytes) noexcept;
std::uint64_t checksum(std::span<const ConstBytes> pieces) noexcept;

// Header and body as they are sent; sets what the writer need not know (sizes, checksum). Errors: INVALID_VALUE.
Result<std::vector<std::byte>> write(Header header, ConstBytes body = {});

struct Parsed {
  Header header;
  ConstBytes body;  // within the bytes that were parsed
};
// Errors: INVALID_VALUE, naming what is wrong with the header and both values.
Result<Parsed> parse(ConstBytes bytes);
// Whether these are the payload that the header announced.
Status verify_payload(const Header& header, ConstBytes payload);

}  // namespace vmem::rdma::wire
