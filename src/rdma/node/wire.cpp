#include "rdma/node/wire.hpp"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <cstring>
#include <memory>

namespace vmem::rdma::wire {
namespace {

constexpr std::size_t kSummedBytes = offsetof(Header, checksum);

std::uint64_t header_checksum(const Header& header, ConstBytes body) noexcept {
  const ConstBytes pieces[] = {ConstBytes{reinterpret_cast<const std::byte*>(&header), kSummedBytes}, body};
  return checksum(pieces);
}

std::unexpected<Error> refuse(std::string why) {
  return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("a message was refused: {}", why));
}

bool is_known(Kind kind) noexcept { return !kind_name(kind).empty(); }

Status check_fields(const Header& header, std::size_t bytes, std::uint16_t version) {
  if (header.magic != kMagic) return refuse(fmt::format("it begins with {:#x}, not {:#x}", header.magic, kMagic));
  if (header.version != version)
    return refuse(fmt::format("it has protocol version {}, its connection {}", header.version, version));
  if (header.body_bytes != bytes - sizeof(Header))
    return refuse(
        fmt::format("its body is said to have {} bytes and has {}", header.body_bytes, bytes - sizeof(Header)));
  return {};
}

Status check_values(const Header& header) {
  const auto kind = static_cast<std::uint16_t>(header.kind);
  if (!is_known(header.kind)) return refuse(fmt::format("its kind {} is unknown", kind));
  if (header.reserved != 0) return refuse(fmt::format("its reserved field is {}, not 0", header.reserved));
  if (static_cast<std::uint32_t>(header.order) >= kOrders)
    return refuse(
        fmt::format("its order is {}, the last is {}", static_cast<std::uint32_t>(header.order), kOrders - 1));
  if (header.request.sequence == 0) return refuse("its sequence is 0; the first is 1");
  if (header.payload_bytes > kMostPayloadBytes)
    return refuse(fmt::format("its payload has {} bytes, the most is {}", header.payload_bytes, kMostPayloadBytes));
  return {};
}

}  // namespace

std::string_view kind_name(Kind kind) noexcept {
  switch (kind) {
    case Kind::ping:
      return "ping";
    case Kind::pong:
      return "pong";
    case Kind::allocate:
      return "allocate";
    case Kind::allocated:
      return "allocated";
    case Kind::release:
      return "release";
    case Kind::released:
      return "released";
    case Kind::put:
      return "put";
    case Kind::put_done:
      return "put done";
    case Kind::fetch:
      return "fetch";
    case Kind::fetched:
      return "fetched";
    case Kind::end:
      return "end";
    case Kind::ended:
      return "ended";
    case Kind::parcel:
      return "parcel";
    case Kind::fetch_shared:
      return "fetch_shared";
    case Kind::fetched_shared:
      return "fetched_shared";
  }
  return {};
}

std::uint64_t checksum(std::span<const ConstBytes> pieces) noexcept {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (const ConstBytes piece : pieces) XXH3_64bits_update(&state, piece.data(), piece.size());
  return XXH3_64bits_digest(&state);
}

Result<std::vector<std::byte>> write(Header header, ConstBytes body) {
  if (body.size() > kMostBodyBytes)
    return fail(VMEM_ERROR_INVALID_VALUE,
                fmt::format("a body of {} bytes; the most is {}", body.size(), kMostBodyBytes));
  header.body_bytes = static_cast<std::uint32_t>(body.size());
  VMEM_TRY(check_fields(header, sizeof(Header) + body.size(), header.version));
  VMEM_TRY(check_values(header));
  header.checksum = header_checksum(header, body);
  std::vector<std::byte> bytes(sizeof(Header) + body.size());
  std::memcpy(bytes.data(), &header, sizeof(Header));
  if (!body.empty()) std::memcpy(bytes.data() + sizeof(Header), body.data(), body.size());
  return bytes;
}

Result<Parsed> parse(ConstBytes bytes, std::uint16_t version) {
  if (bytes.size() < sizeof(Header))
    return refuse(fmt::format("it has {} bytes, a header has {}", bytes.size(), sizeof(Header)));
  Parsed parsed;
  std::memcpy(&parsed.header, bytes.data(), sizeof(Header));
  parsed.body = bytes.subspan(sizeof(Header));
  VMEM_TRY(check_fields(parsed.header, bytes.size(), version));
  if (const std::uint64_t sum = header_checksum(parsed.header, parsed.body); sum != parsed.header.checksum)
    return refuse(fmt::format("its checksum is {:#x}, its bytes give {:#x}", parsed.header.checksum, sum));
  VMEM_TRY(check_values(parsed.header));
  return parsed;
}

}  // namespace vmem::rdma::wire
