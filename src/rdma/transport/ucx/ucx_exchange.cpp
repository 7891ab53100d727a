#include "rdma/transport/ucx/ucx_exchange.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>

namespace vmem::rdma {
namespace {

// Little-endian, like all messages between nodes. The addresses follow, each preceded by its size
// (32 bits).
//
// UCX receives from CUDA memory only if its own context knows that memory, even if the destination
// is host memory: otherwise it breaks the connection. So a node says in `flags` that it does.
// Nodes before this flag say 0 there, and ignore what they read.
constexpr std::uint32_t kKnowsCuda = 1;  // other bits are for later releases, and ignored

struct Head {
  std::array<char, 8> magic{'v', 'm', 'e', 'm', 'u', 'c', 'x', '1'};
  std::uint64_t link = 0;
  std::array<unsigned char, 16> key{};
  std::uint32_t address_bytes = 0;  // of the addresses that follow
  std::uint32_t flags = 0;
};
static_assert(sizeof(Head) == 40);

template <class T>
void append(std::vector<std::byte>& out, const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

}  // namespace

UcxExchange::UcxExchange(const UcxIntroduction& ours) : in_(sizeof(Head)) {
  std::vector<std::byte> addresses;
  for (const UcxAddress& address : ours.addresses) {
    append(addresses, static_cast<std::uint32_t>(address.size()));
    addresses.insert(addresses.end(), address.begin(), address.end());
  }
  append(out_, Head{.link = ours.link,
                    .key = ours.key.bytes,
                    .address_bytes = static_cast<std::uint32_t>(addresses.size()),
                    .flags = ours.knows_cuda ? kKnowsCuda : 0});
  out_.insert(out_.end(), addresses.begin(), addresses.end());
}

Result<bool> UcxExchange::advance(ByteStream& stream) {
  VMEM_ASSIGN(const bool written, write(stream));
  VMEM_ASSIGN(const bool read, this->read(stream));
  return written && read;
}

Result<bool> UcxExchange::write(ByteStream& stream) {
  wants_write_ = false;
  while (sent_ < out_.size()) {
    const ConstBytes rest[] = {ConstBytes(out_).subspan(sent_)};
    VMEM_ASSIGN(const std::size_t taken, stream.write(rest));
    sent_ += taken;
    wants_write_ = taken == 0;
    if (taken == 0) break;
  }
  VMEM_ASSIGN(const bool flushed, stream.flush());
  wants_write_ |= !flushed;
  return flushed && sent_ == out_.size();
}

// Reads no byte past the introduction: a later byte says that the peer leaves.
Result<bool> UcxExchange::read(ByteStream& stream) {
  while (!read_) {
    VMEM_ASSIGN(const std::size_t got, stream.read(Bytes(in_).subspan(received_)));
    if (got == 0) return false;
    received_ += got;
    if (received_ < in_.size()) continue;
    if (!has_head_) {
      VMEM_TRY(parse_head());
    } else {
      VMEM_TRY(parse_addresses());
      read_ = true;
    }
  }
  return true;
}

Status UcxExchange::parse_head() {
  Head head;
  std::memcpy(&head, in_.data(), sizeof(head));
  if (head.magic != Head{}.magic)
    return fail(VMEM_ERROR_INVALID_VALUE, "the peer says nothing of UCX: both need --fabric, of the same release");
  if (head.address_bytes == 0 || head.address_bytes > kMostAddressBytes)
    return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("the peer has {} bytes of UCX addresses; from 1 to {} can be",
                                                      head.address_bytes, kMostAddressBytes));
  theirs_.link = head.link;
  theirs_.key.bytes = head.key;
  theirs_.knows_cuda = (head.flags & kKnowsCuda) != 0;
  has_head_ = true;
  received_ = 0;
  in_.assign(head.address_bytes, {});
  return {};
}

Status UcxExchange::parse_addresses() {
  ConstBytes bytes = in_;
  while (!bytes.empty()) {
    std::uint32_t size = 0;
    if (bytes.size() >= sizeof(size)) std::memcpy(&size, bytes.data(), sizeof(size));
    if (size == 0 || size > bytes.size() - sizeof(size))
      return fail(VMEM_ERROR_INVALID_VALUE, "the peer's UCX addresses are none");
    bytes = bytes.subspan(sizeof(size));
    theirs_.addresses.emplace_back(bytes.begin(), bytes.begin() + size);
    bytes = bytes.subspan(size);
  }
  return {};
}

}  // namespace vmem::rdma
