#include "rdma/transport/ucx/envelope.hpp"

#include <fmt/format.h>

#include <cstring>

namespace vmem::rdma {
namespace {

constexpr std::size_t kTagAt = offsetof(Envelope, tag);

// The tag covers the envelope before it and the header, not itself.
std::uint64_t tag_of(const Crypto& crypto, const ShortKey& key, ConstBytes sealed) {
  std::array<std::byte, kMostSealedBytes> bytes;
  const ConstBytes header = sealed.subspan(sizeof(Envelope));
  std::memcpy(bytes.data(), sealed.data(), kTagAt);
  if (!header.empty()) std::memcpy(bytes.data() + kTagAt, header.data(), header.size());
  return crypto.short_tag(key, ConstBytes(bytes).first(kTagAt + header.size()));
}

}  // namespace

std::vector<std::byte> seal(const Crypto& crypto, const ShortKey& key, Envelope envelope, ConstBytes header) {
  envelope.header_bytes = static_cast<std::uint16_t>(header.size());
  std::vector<std::byte> sealed(sizeof(Envelope) + header.size());
  std::memcpy(sealed.data(), &envelope, sizeof(Envelope));
  if (!header.empty()) std::memcpy(sealed.data() + sizeof(Envelope), header.data(), header.size());
  const std::uint64_t tag = tag_of(crypto, key, sealed);
  std::memcpy(sealed.data() + kTagAt, &tag, sizeof(tag));
  return sealed;
}

Result<Opened> open(ConstBytes bytes) {
  const auto refuse = [](std::string why) { return fail(VMEM_ERROR_INVALID_VALUE, std::move(why)); };
  if (bytes.size() < sizeof(Envelope) || bytes.size() > kMostSealedBytes)
    return refuse(fmt::format("a message header of {} bytes", bytes.size()));
  Opened opened;
  std::memcpy(&opened.envelope, bytes.data(), sizeof(Envelope));
  opened.header = bytes.subspan(sizeof(Envelope));
  const Envelope& envelope = opened.envelope;
  if (envelope.magic != Envelope{}.magic)
    return refuse(fmt::format("a message that begins with {:#x}", envelope.magic));
  if (envelope.kind != EnvelopeKind::hello && envelope.kind != EnvelopeKind::message)
    return refuse(fmt::format("a message of kind {}", static_cast<std::uint16_t>(envelope.kind)));
  if (envelope.header_bytes != opened.header.size())
    return refuse(
        fmt::format("a header of {} bytes that is said to have {}", opened.header.size(), envelope.header_bytes));
  return opened;
}

bool genuine(const Crypto& crypto, const ShortKey& key, ConstBytes bytes) {
  std::uint64_t tag = 0;
  std::memcpy(&tag, bytes.data() + kTagAt, sizeof(tag));
  return tag == tag_of(crypto, key, bytes);
}

bool SequenceWindow::admit(std::uint64_t sequence) noexcept {
  if (sequence == 0 || (newest_ >= kWindow && sequence <= newest_ - kWindow)) return false;
  if (sequence > newest_) {
    if (sequence - newest_ >= kWindow) {
      seen_.reset();
    } else {
      for (std::uint64_t passed = newest_ + 1; passed < sequence; ++passed) seen_.reset(passed % kWindow);
    }
    newest_ = sequence;
  } else if (seen_.test(sequence % kWindow)) {
    return false;
  }
  seen_.set(sequence % kWindow);
  return true;
}

}  // namespace vmem::rdma
