// UcxLoop: sending and receiving messages. All of it runs inside progress(). UCX's callbacks only
// mark channels as failed and close nothing.
#include <fmt/format.h>

#include "base/log.hpp"
#include "rdma/transport/ucx/ucx_loop.hpp"

namespace vmem::rdma {
namespace {

// Smaller payloads travel with their header; larger ones wait until the receiver has claimed them.
constexpr std::uint64_t kLeastRendezvousBytes = 32 << 10;

ucp_request_param_t send_params(UcxSend& send, ucp_send_nbx_callback_t callback) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE |
                        UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.cb.send = callback;
  params.user_data = &send;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  params.flags = send.payload_bytes >= kLeastRendezvousBytes ? UCP_AM_SEND_FLAG_RNDV : 0;
  params.datatype = send.spans.size() > 1 ? ucp_dt_make_iov() : ucp_dt_make_contig(1);
  if (send.spans.size() == 1) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    params.memh = send.memory->get();
    params.memory_type = send.memory->told_type();
  }
  return params;
}

// The event for the end of a send.
Event end_of(const UcxSend& send, const UcxFailure* failure) {
  send.peer->outstanding.fetch_sub(1, std::memory_order_relaxed);
  send.peer->under_way[send.index].fetch_sub(send.payload_bytes, std::memory_order_relaxed);
  if (failure == nullptr) return {send.peer->id, Sent{send.id}};
  return {send.peer->id, SendFailed{send.id, failure->reason, failure->error}};
}

}  // namespace

void UcxLoop::on_sent(void* request, ucs_status_t status, void* user) {
  auto& send = *static_cast<UcxSend*>(user);
  UcxLoop& loop = *send.channel->loop;
  loop.ucx()->ucp_request_free(request);
  loop.end_send(send, status);
}

void UcxLoop::on_received(void* request, ucs_status_t status, std::size_t, void* user) {
  auto& receive = *static_cast<UcxReceive*>(user);
  UcxLoop& loop = *receive.channel->loop;
  loop.ucx()->ucp_request_free(request);
  loop.end_receive(receive, status);
}

void UcxLoop::run(std::unique_ptr<UcxSend> send) {
  UcxChannel* const channel = find(send->peer->id);
  if (channel == nullptr) {
    const UcxFailure gone{Reason::lost, {VMEM_ERROR_LOST, 0, "the peer of this send is gone"}};
    return config_.owner->tell(end_of(*send, &gone));
  }
  UcxSend& kept = *send;
  kept.channel = channel;
  deadlines_.add(kept.deadline_us, channel->peer->id);
  channel->sends.emplace(&kept, std::move(send));
  if (!channel->failed) start_send(kept);
}

void UcxLoop::start_send(UcxSend& send) {
  UcxChannel& channel = *send.channel;
  const Envelope envelope{.kind = send.kind,
                          .link = channel.their_link(),
                          .sequence = ++channel.sequence,
                          .payload_bytes = send.payload_bytes};
  send.header = seal(*config_.crypto, channel.acquaintance->send_key, envelope, send.header);
  const ucp_request_param_t params = send_params(send, &on_sent);
  const bool several = send.spans.size() > 1;
  const void* buffer = send.spans.empty() ? nullptr : several ? send.spans.data() : send.spans.front().buffer;
  const std::size_t count = several ? send.spans.size() : send.payload_bytes;
  const ucs_status_ptr_t request =
      ucx()->ucp_am_send_nbx(channel.endpoint.get(), 0, send.header.data(), send.header.size(), buffer, count, &params);
  if (UCS_PTR_IS_PTR(request)) return;  // the callback ends the send
  end_send(send, UCS_PTR_RAW_STATUS(request));
}

// A failed send waits for the end of its channel, which gives the reason.
void UcxLoop::end_send(UcxSend& send, ucs_status_t status) {
  if (status != UCS_OK) return lose_channel(*send.channel, status);
  send.channel->socket.reset();
  send_over(send, nullptr);
}

void UcxLoop::send_over(UcxSend& send, const UcxFailure* failure) {
  UcxChannel& channel = *send.channel;
  deadlines_.remove(send.deadline_us, send.peer->id);
  if (send.id != SendId{}) config_.owner->tell(end_of(send, failure));
  channel.sends.erase(&send);
}

ucs_status_t UcxLoop::on_message(void* user, const void* header, std::size_t header_bytes, void* data,
                                 std::size_t bytes, const ucp_am_recv_param_t* param) {
  auto& channel = *static_cast<UcxChannel*>(user);
  return channel.loop->take_message(channel, {static_cast<const std::byte*>(header), header_bytes}, data, bytes,
                                    (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
}

// UCS_OK without a report drops the message: UCX drops its payload and completes the send.
ucs_status_t UcxLoop::take_message(UcxChannel& channel, ConstBytes bytes, void* data, std::size_t payload_bytes,
                                   bool rendezvous) {
  if (channel.failed) return UCS_OK;
  const auto opened = open(bytes);
  if (!opened) {
    dropped(channel, opened.error().message);
    return UCS_OK;
  }
  if (!proves_itself(channel, bytes, *opened)) return UCS_OK;
  if (opened->envelope.payload_bytes != payload_bytes) {
    dropped(channel, fmt::format("it has {} bytes instead of {}", payload_bytes, opened->envelope.payload_bytes));
    return UCS_OK;
  }
  if (!channel.peer->connected.load(std::memory_order_acquire)) on_connected(channel);
  const PeerId peer = channel.peer->id;
  if (opened->envelope.kind == EnvelopeKind::hello) {
    if (!channel.peer->by_us && !channel.greeted) greet(channel);
    return UCS_OK;
  }
  std::vector<std::byte> header(opened->header.begin(), opened->header.end());
  if (payload_bytes == 0) {
    config_.owner->tell({peer, Message{std::move(header), {}, 0}});
    return UCS_OK;
  }
  UcxAnnounced announced{
      .peer = peer, .index = channel.index, .header = std::move(header), .payload_bytes = payload_bytes};
  const auto* const first = static_cast<const std::byte*>(data);
  if (rendezvous) {
    announced.descriptor = data;
    channel.announced.insert(data);
  } else {
    announced.payload.assign(first, first + payload_bytes);
  }
  reported_ = true;
  config_.owner->report(std::move(announced));
  return rendezvous ? UCS_INPROGRESS : UCS_OK;  // UCX keeps the descriptor
}

bool UcxLoop::proves_itself(UcxChannel& channel, ConstBytes bytes, const Opened& opened) {
  if (opened.envelope.link != channel.our_link() ||
      !genuine(*config_.crypto, channel.acquaintance->receive_key, bytes)) {
    dropped(channel, "it did not prove that it comes from there");
    return false;
  }
  if (channel.received.admit(opened.envelope.sequence)) return true;
  dropped(channel, fmt::format("its sequence {} came before", opened.envelope.sequence));
  return false;
}

// Rate-limited: peers decide how often this happens.
void UcxLoop::dropped(const UcxChannel& channel, const std::string& why) {
  if (const auto times = dropped_.next(); times.logged)
    VMEM_LOG_WARN("a message that says it is from {} was dropped: {} ({} so far)", channel.peer->address, why,
                  times.count);
}

void UcxLoop::run(UcxTake command) {
  UcxChannel& channel = *find(command.peer);
  auto owned = std::make_unique<UcxReceive>(UcxReceive{&channel, command.claim, std::move(command.header)});
  UcxReceive& receive = *owned;
  channel.receives.emplace(&receive, std::move(owned));
  deadlines_.add(receive.claim.deadline_us, command.peer);
  if (channel.failed) return;  // UcxEnd ends the receive
  channel.announced.erase(command.descriptor);
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  params.cb.recv_am = &on_received;
  params.user_data = &receive;
  params.datatype = ucp_dt_make_contig(1);
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  const Bytes destination = receive.claim.destination;
  if (auto memory = config_.slabs->find(destination)) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    receive.memory = std::static_pointer_cast<UcxMemory>(*std::move(memory));
    params.memh = receive.memory->get();
  }
  const ucs_status_ptr_t request = ucx()->ucp_am_recv_data_nbx(channel.worker->get(), command.descriptor,
                                                               destination.data(), destination.size(), &params);
  if (!UCS_PTR_IS_PTR(request)) end_receive(receive, UCS_PTR_RAW_STATUS(request));
}

void UcxLoop::run(UcxRefuse command) {
  UcxChannel& channel = *find(command.peer);
  if (channel.failed || channel.announced.erase(command.descriptor) == 0) return;
  ucx()->ucp_am_data_release(channel.worker->get(), command.descriptor);
}

void UcxLoop::end_receive(UcxReceive& receive, ucs_status_t status) {
  UcxChannel& channel = *receive.channel;
  if (status != UCS_OK) return lose_channel(channel, status);
  channel.socket.reset();
  const PeerId peer = channel.peer->id;
  deadlines_.remove(receive.claim.deadline_us, peer);
  config_.owner->tell({peer, Message{std::move(receive.header), receive.claim.destination, receive.claim.token}});
  channel.receives.erase(&receive);
}

}  // namespace vmem::rdma
