// Header of every request and reply between nodes: 64 bytes of fixed layout, little-endian, with
// a checksum over header and body. (client, epoch, sequence) identifies a request: the
// ReplyCache answers its repetitions.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "base/node.hpp"
#include "rdma/transport/transport.hpp"

namespace vmem::rdma::wire {

static_assert(std::endian::native == std::endian::little, "headers are sent as they lie in memory");

inline constexpr std::uint32_t kMagic = 0x4d454d56;  // "VMEM"
inline constexpr std::uint64_t kMostPayloadBytes = std::uint64_t{1} << 30;

// Requests are even; a request's reply is the next odd number.
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
  parcel = 14,  // without a reply
  fetch_shared = 16,
  fetched_shared = 17,
};
std::string_view kind_name(Kind kind) noexcept;
constexpr bool is_reply(Kind kind) noexcept { return (static_cast<std::uint16_t>(kind) & 1) != 0; }

// Sequence of an `allocated` that answers no request.
inline constexpr std::uint64_t kUnasked = ~std::uint64_t{0};

// How urgent the page of a request is: a thread waits for it; it will be used; nobody waits for it.
enum class Order : std::uint32_t { foreground = 0, ahead = 1, background = 2 };
inline constexpr std::size_t kOrders = 3;

struct RequestId {
  std::uint64_t client = 0;    // the requesting node
  Epoch epoch{};               // without a directory that assigns epochs: the incarnation
  std::uint64_t sequence = 0;  // per client and epoch; from 1
  bool operator==(const RequestId&) const = default;
};

struct Header {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kProtocolVersion;
  Kind kind = Kind::ping;
  RequestId request;
  std::uint64_t payload_bytes = 0;
  Order order = Order::foreground;  // of requests for pages
  std::uint32_t unused = 0;         // 0, and ignored
  std::uint32_t body_bytes = 0;     // after this header, in the message's header
  std::uint32_t reserved = 0;       // 0
  std::uint64_t checksum = 0;       // over all fields before it, and the body
};
static_assert(sizeof(RequestId) == 24 && sizeof(Header) == 64 && alignof(Header) == 8);
static_assert(offsetof(Header, request) == 8 && offsetof(Header, payload_bytes) == 32 &&
              offsetof(Header, checksum) == 56);
inline constexpr std::size_t kMostBodyBytes = kMostHeaderBytes - sizeof(Header);

// XXH3, 64 bits.
std::uint64_t checksum(std::span<const ConstBytes> pieces) noexcept;

// The header and body as sent; sets the sizes and the checksum of the header, whose version is the
// connection's.
// Errors: INVALID_VALUE.
Result<std::vector<std::byte>> write(Header header, ConstBytes body = {});

struct Parsed {
  Header header;
  ConstBytes body;  // within the parsed bytes
};
// `version`: of the connection. Errors: INVALID_VALUE, naming the invalid field and both values.
Result<Parsed> parse(ConstBytes bytes, std::uint16_t version = kProtocolVersion);

}  // namespace vmem::rdma::wire
