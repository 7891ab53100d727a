#include "rdma/transport/transport.hpp"

#include <fmt/format.h>

#include "rdma/transport/send_check.hpp"

namespace vmem::rdma {

std::string_view reason_name(Reason reason) noexcept {
  switch (reason) {
    case Reason::closed:
      return "closed here";
    case Reason::left:
      return "left";
    case Reason::lost:
      return "lost";
    case Reason::timeout:
      return "timeout";
    case Reason::refused:
      return "refused";
  }
  return "unknown";
}

Result<std::unique_ptr<Slab>> Transport::register_gpu_slab(Bytes) {
  return fail(VMEM_ERROR_UNSUPPORTED, "this transport does not send from a GPU's memory: stage its bytes");
}

std::uint64_t payload_bytes(std::span<const ConstBytes> payload) noexcept {
  std::uint64_t bytes = 0;
  for (const ConstBytes span : payload) bytes += span.size();
  return bytes;
}

Status check_send(const Send& send) {
  const auto refuse = [](const std::string& why) {
    return fail(VMEM_ERROR_INVALID_VALUE, "a send was refused: " + why);
  };
  if (send.header.size() > kMostHeaderBytes)
    return refuse(fmt::format("its header has {} bytes, the most is {}", send.header.size(), kMostHeaderBytes));
  if (send.payload.size() > kMostSpans)
    return refuse(fmt::format("its payload has {} spans, the most is {}", send.payload.size(), kMostSpans));
  if (send.deadline_us == 0) return refuse("it has no deadline");
  for (const ConstBytes span : send.payload) {
    if (span.empty()) return refuse("a span of its payload is empty");
  }
  return {};
}

}  // namespace vmem::rdma
