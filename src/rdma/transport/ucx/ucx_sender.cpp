#include "rdma/transport/ucx/ucx_sender.hpp"

#include <fmt/format.h>

#include <utility>

#include "rdma/transport/send_check.hpp"

namespace vmem::rdma {

Result<std::unique_ptr<UcxSend>> UcxSender::prepare(const Send& send) const {
  VMEM_TRY(check_send(send));
  auto prepared = std::make_unique<UcxSend>();
  prepared->deadline_us = send.deadline_us;
  prepared->header.assign(send.header.begin(), send.header.end());
  prepared->payload_bytes = payload_bytes(send.payload);
  for (const ConstBytes span : send.payload) {
    VMEM_ASSIGN(const SlabMap::Handle memory, slabs_.find(span));
    prepared->memory = std::static_pointer_cast<UcxMemory>(memory);
    if (send.payload.size() > 1 && prepared->memory->told_type() != UCS_MEMORY_TYPE_HOST)
      return fail(
          VMEM_ERROR_INVALID_VALUE,
          fmt::format("a send was refused: its payload has {} spans, and GPU memory goes as one", send.payload.size()));
    prepared->spans.push_back({const_cast<std::byte*>(span.data()), span.size()});
  }
  return prepared;
}

void UcxSender::dispatch(std::unique_ptr<UcxSend> send) const {
  UcxPeer& peer = *send->peer;
  const std::lock_guard lock(peer.mutex);
  if (peer.over) return refuse(*send, peer_is_gone());
  const std::uint32_t channels = peer.channels.load(std::memory_order_relaxed);
  std::uint64_t least = UINT64_MAX;
  for (std::uint32_t i = 0; i < channels; ++i) {
    const std::uint64_t bytes = peer.under_way[i].load(std::memory_order_relaxed);
    if (bytes >= least) continue;
    least = bytes;
    send->index = i;
  }
  peer.under_way[send->index].fetch_add(send->payload_bytes, std::memory_order_relaxed);
  loops_[send->index]->post(std::move(send));
}

void UcxSender::refuse(const UcxSend& send, const UcxFailure& failure) const {
  send.peer->outstanding.fetch_sub(1, std::memory_order_relaxed);
  owner_.tell({send.peer->id, SendFailed{send.id, failure.reason, failure.error}});
}

}  // namespace vmem::rdma
