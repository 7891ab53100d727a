// How a UcxTransport sends and takes messages. All of it runs inside progress(), part of it in UCX's callbacks, which mark links
// and close nothing.
#include <fmt/format.h>

#include <cstring>

#include "base/log.hpp"
#include "rdma/ucx_transport.hpp"

namespace vmem::rdma {
namespace {

// Smaller payloads go along with their header, larger ones wait until the receiver said where to.
constexpr std::uint64_t kLeastRendezvousBytes = 32 << 10;

std::uint64_t bytes_of(const std::vector<ucp_dt_iov_t>& spans) {
  std::uint64_t bytes = 0;
  for (const ucp_dt_iov_t& span : spans) bytes += span.length;
  return bytes;
}

ucp_request_param_t send_params(UcxSend& send, std::uint64_t bytes, ucp_send_nbx_callback_t callback) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE |
                        UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.cb.send = callback;
  params.user_data = &send;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  params.flags = bytes >= kLeastRendezvousBytes ? UCP_AM_SEND_FLAG_RNDV : 0;
  params.datatype = send.spans.size() > 1 ? ucp_dt_make_iov() : ucp_dt_make_contig(1);
  if (send.spans.size() == 1) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    params.memh = send.memory;
  }
  return params;
}

}  // namespace

void UcxTransport::on_sent(void* request, ucs_status_t status, void* user) {
  auto& send = *static_cast<UcxSend*>(user);
  send.transport->context_->ucx()->ucp_request_free(request);
  send.transport->end_send(send, status);
}

void UcxTransport::on_received(void* request, ucs_status_t status, std::size_t, void* user) {
  auto& receive = *static_cast<UcxReceive*>(user);
  receive.transport->context_->ucx()->ucp_request_free(request);
  receive.transport->end_receive(receive, status);
}

void UcxTransport::start_send(UcxSend& send) {
  UcxLink& link = *send.link;
  const std::uint64_t bytes = bytes_of(send.spans);
  const Envelope envelope{
      .kind = send.kind, .link = link.acquaintance.their_link, .sequence = ++link.sequence, .payload_bytes = bytes};
  send.header = seal(*crypto_, link.acquaintance.send_key, envelope, send.header);
  const ucp_request_param_t params = send_params(send, bytes, &on_sent);
  const bool several = send.spans.size() > 1;
  const void* buffer = send.spans.empty() ? nullptr : several ? send.spans.data() : send.spans.front().buffer;
  const std::size_t count = several ? send.spans.size() : bytes;
  const ucs_status_ptr_t request = context_->ucx()->ucp_am_send_nbx(link.endpoint.get(), 0, send.header.data(),
                                                                    send.header.size(), buffer, count, &params);
  if (UCS_PTR_IS_PTR(request)) return;  // the callback ends it
  end_send(send, UCS_PTR_RAW_STATUS(request));
}

void UcxTransport::end_send(UcxSend& send, ucs_status_t status) {
  UcxLink& link = *send.link;
  if (status != UCS_OK) lose_link(link, status);
  deadlines_.remove(send.deadline_us, link.peer);
  if (send.id != SendId{}) {
    {
      const std::lock_guard lock(mutex_);
      --outstanding_[link.peer];
    }
    if (status == UCS_OK) {
      events_.push({link.peer, Sent{send.id}});
    } else {
      events_.push({link.peer, SendFailed{send.id, link.failure->reason, link.failure->error}});
    }
  }
  link.sends.erase(&send);
}

ucs_status_t UcxTransport::on_message(void* user, const void* header, std::size_t header_bytes, void* data,
                                      std::size_t bytes, const ucp_am_recv_param_t* param) {
  auto& link = *static_cast<UcxLink*>(user);
  return link.transport->take_message(link, {static_cast<const std::byte*>(header), header_bytes}, data, bytes,
                                      (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
}

ucs_status_t UcxTransport::take_message(UcxLink& link, ConstBytes bytes, void* data, std::size_t payload_bytes,
                                        bool rendezvous) {
  if (link.failure) return UCS_OK;
  const auto opened = open(bytes);
  if (!opened) {
    VMEM_LOG_WARN("{} was dropped", opened.error().message);
    return UCS_OK;
  }
  if (!proves_itself(link, bytes, *opened)) return UCS_OK;
  if (opened->envelope.payload_bytes != payload_bytes) {
    VMEM_LOG_WARN("a message from {} with {} bytes instead of {} was dropped", link.address, payload_bytes,
                  opened->envelope.payload_bytes);
    return UCS_OK;
  }
  if (!link.connected) on_connected(link);
  if (opened->envelope.kind == EnvelopeKind::hello) return UCS_OK;
  if (payload_bytes == 0) {
    events_.push({link.peer, Message{{opened->header.begin(), opened->header.end()}, {}, 0}});
    return UCS_OK;
  }
  return take_payload(link, opened->header, data, payload_bytes, rendezvous);
}

bool UcxTransport::proves_itself(UcxLink& link, ConstBytes bytes, const Opened& opened) const {
  if (opened.envelope.link != link.acquaintance.our_link || !genuine(*crypto_, link.acquaintance.receive_key, bytes)) {
    VMEM_LOG_WARN("a message that claims to come from {} was dropped: it did not prove so", link.address);
    return false;
  }
  if (link.received.admit(opened.envelope.sequence)) return true;
  VMEM_LOG_WARN("a message from {} was dropped: its sequence {} came before", link.address, opened.envelope.sequence);
  return false;
}

ucs_status_t UcxTransport::take_payload(UcxLink& link, ConstBytes header, void* data, std::size_t bytes,
                                        bool rendezvous) {
  const std::optional<Claim> claim = config_.receiver->claim(link.peer, header, bytes);
  if (!claim) return UCS_OK;  // UCX drops the payload and lets the sender go on
  if (claim->destination.size() != bytes) {
    VMEM_LOG_ERROR("{} bytes were claimed for a payload of {}", claim->destination.size(), bytes);
    events_.push({link.peer, ReceiveFailed{claim->token, {VMEM_ERROR_INTERNAL, 0, "claimed with another size"}}});
    return UCS_OK;
  }
  if (rendezvous) return start_receive(link, header, *claim, data);
  std::memcpy(claim->destination.data(), data, bytes);
  events_.push({link.peer, Message{{header.begin(), header.end()}, claim->destination, claim->token}});
  return UCS_OK;
}

ucs_status_t UcxTransport::start_receive(UcxLink& link, ConstBytes header, const Claim& claim, void* descriptor) {
  auto owned = std::make_unique<UcxReceive>(UcxReceive{this, &link, claim, {header.begin(), header.end()}});
  UcxReceive& receive = *owned;
  link.receives.emplace(&receive, std::move(owned));
  deadlines_.add(claim.deadline_us, link.peer);
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  params.cb.recv_am = &on_received;
  params.user_data = &receive;
  params.datatype = ucp_dt_make_contig(1);
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  if (const auto memory = slabs_.find(claim.destination)) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    params.memh = static_cast<ucp_mem_h>(*memory);
  }
  const ucs_status_ptr_t request = context_->ucx()->ucp_am_recv_data_nbx(
      link.worker->get(), descriptor, claim.destination.data(), claim.destination.size(), &params);
  if (!UCS_PTR_IS_PTR(request)) end_receive(receive, UCS_PTR_RAW_STATUS(request));
  return UCS_INPROGRESS;  // UCX has the descriptor
}

void UcxTransport::end_receive(UcxReceive& receive, ucs_status_t status) {
  UcxLink& link = *receive.link;
  deadlines_.remove(receive.claim.deadline_us, link.peer);
  if (status == UCS_OK) {
    events_.push({link.peer, Message{std::move(receive.header), receive.claim.destination, receive.claim.token}});
  } else {
    lose_link(link, status);
    events_.push({link.peer, ReceiveFailed{receive.claim.token, link.failure->error}});
  }
  link.receives.erase(&receive);
}

}  // namespace vmem::rdma
