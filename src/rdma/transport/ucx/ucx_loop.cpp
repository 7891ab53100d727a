#include "rdma/transport/ucx/ucx_loop.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "rdma/transport/ucx/farewell.hpp"

namespace vmem::rdma {
namespace {

// Progress calls per worker before the next worker and the commands get their turn.
constexpr int kWorkerTurns = 32;

Status watch(const FileDescriptor& epoll, int descriptor) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = descriptor}};
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, descriptor, &event) == 0) return {};
  return fail(VMEM_ERROR_INTERNAL, fmt::format("epoll_ctl: {}", std::strerror(errno)), errno);
}

}  // namespace

Result<std::unique_ptr<UcxLoop>> UcxLoop::create(Config config) {
  std::unique_ptr<UcxLoop> loop(new UcxLoop(std::move(config)));
  loop->epoll_ = FileDescriptor(::epoll_create1(EPOLL_CLOEXEC));
  VMEM_TRY(watch(loop->epoll_, loop->inbox_.descriptor()));
  return loop;
}

bool UcxLoop::carry_out() {
  std::vector<UcxCommand> commands = inbox_.take();
  for (UcxCommand& command : commands) std::visit([&](auto& each) { run(std::move(each)); }, command);
  return !commands.empty();
}

bool UcxLoop::progress() {
  if (!std::exchange(entered_, true) && config_.enter_thread) config_.enter_thread();
  reported_ = false;
  bool did = carry_out();
  if (!config_.owner->full()) did |= progress_workers();
  return expire() || did;
}

bool UcxLoop::progress_workers() {
  bool did = false;
  for (auto& [peer, channel] : channels_) {
    for (int turn = 0; turn < kWorkerTurns && may_progress(*channel) && channel->worker->progress(); ++turn) {
      did = true;
      if (reported_) break;
    }
  }
  return did;
}

// UCX 1.13 aborts if it progresses an endpoint that is still connecting and whose peer is gone:
// the peer's worker was destroyed, or the connection was accepted and then reset before its use.
// So a leaving node, this one included, says so on the link's socket before it closes anything of
// UCX.
bool UcxLoop::may_progress(UcxChannel& channel) {
  if (channel.failed) return false;
  if (!channel.socket || !is_leaving(channel.socket.get())) return true;
  fail_channel(channel, Reason::lost,
               {VMEM_ERROR_LOST, 0, fmt::format("{} is lost: it left while it connected", channel.peer->address)});
  return false;
}

bool UcxLoop::expire() {
  const std::uint64_t now = config_.clock->now_us();
  if (!deadlines_.expired(now)) return false;
  bool did = false;
  deadlines_.for_expired(now, [&](PeerId peer) {
    UcxChannel& channel = *find(peer);
    if (channel.failed) return;
    did = true;
    fail_channel(channel, Reason::timeout,
                 {VMEM_ERROR_TIMEOUT, 0, fmt::format("{} did not answer before the deadline", channel.peer->address)});
  });
  return did;
}

bool UcxLoop::arm() {
  return inbox_.arm() &&
         std::ranges::all_of(channels_, [](auto& each) { return each.second->failed || each.second->worker->arm(); });
}

void UcxLoop::idle(std::uint64_t most_us) {
  int ready = 1;
  if (arm()) {
    epoll_event event;
    const auto most_ms = static_cast<int>(std::min<std::uint64_t>((most_us + 999) / 1000, 60'000));
    ready = ::epoll_wait(epoll_.get(), &event, 1, most_ms);
  }
  // The work may first need UCX's own thread, which accepts connections: let it run.
  if (ready > 0) std::this_thread::yield();
  disarm();
}

// ---- channels ----

UcxChannel* UcxLoop::find(PeerId peer) {
  const auto channel = channels_.find(peer);
  return channel == channels_.end() ? nullptr : channel->second.get();
}

void UcxLoop::run(UcxOpen command) {
  UcxChannel& channel = *command.channel;
  channel.loop = this;
  channel.socket = std::move(command.socket);
  channels_.emplace(channel.peer->id, std::move(command.channel));
  if (const auto connected = connect(channel, command.address); !connected)
    return fail_channel(
        channel, Reason::refused,
        {VMEM_ERROR_LOST, 0,
         fmt::format("node {} at {} cannot be reached: {}; both need a transport of UCX in common (UCX_TLS)",
                     static_cast<std::uint64_t>(channel.acquaintance->node.id), channel.peer->address,
                     connected.error().message)});
  if (command.greets && may_progress(channel)) greet(channel);
}

Status UcxLoop::connect(UcxChannel& channel, ConstBytes address) {
  VMEM_TRY(channel.worker->on_message(&on_message, &channel));
  VMEM_TRY(watch(epoll_, channel.worker->descriptor()));
  VMEM_ASSIGN(channel.endpoint, UcxEndpoint::create(channel.worker, address, &on_endpoint_error, &channel));
  return {};
}

void UcxLoop::greet(UcxChannel& channel) {
  channel.greeted = true;
  auto greeting = std::make_unique<UcxSend>();
  greeting->peer = channel.peer;
  greeting->index = channel.index;
  greeting->kind = EnvelopeKind::hello;
  greeting->deadline_us = channel.greet_us;
  run(std::move(greeting));
}

// The first authenticated message, on any channel, connects the peer.
void UcxLoop::on_connected(UcxChannel& channel) {
  UcxPeer& peer = *channel.peer;
  {
    const std::lock_guard lock(peer.mutex);
    if (peer.connected.load(std::memory_order_relaxed) || peer.over) return;
    const std::uint32_t channels = peer.channels.load(std::memory_order_relaxed);
    std::string path = channel.endpoint.path();
    if (channels > 1) path += fmt::format(", {} channels", channels);
    config_.owner->tell({peer.id, Connected{channel.acquaintance->node, peer.by_us, std::move(path), peer.identity,
                                            peer.process, channels, peer.version, peer.takes_gpu_memory}});
    peer.connected.store(true, std::memory_order_release);
  }
  config_.owner->report(UcxConnected{peer.id});
}

void UcxLoop::run(const UcxStop& command) {
  UcxChannel& channel = *find(command.peer);
  channel.failed = true;
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, channel.worker->descriptor(), nullptr);
  config_.owner->report(UcxStopped{command.peer});
}

void UcxLoop::run(const UcxEnd& command) {
  UcxChannel& channel = *find(command.peer);
  for (void* const descriptor : std::exchange(channel.announced, {}))
    ucx()->ucp_am_data_release(channel.worker->get(), descriptor);
  // No progress in between: it would serve connections that remain after a forced close.
  channel.endpoint = {};
  channel.worker.reset();
  // UCX has forgotten the sends that it did not end.
  while (!channel.sends.empty()) send_over(*channel.sends.begin()->second, &command.failure);
  for (auto& [receive, owned] : channel.receives) {
    deadlines_.remove(receive->claim.deadline_us, command.peer);
    config_.owner->tell({command.peer, ReceiveFailed{receive->claim.token, command.failure.error}});
  }
  channels_.erase(command.peer);
  config_.owner->report(UcxEnded{command.peer});
}

void UcxLoop::fail_channel(UcxChannel& channel, Reason reason, Error error) {
  if (std::exchange(channel.failed, true)) return;
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, channel.worker->descriptor(), nullptr);
  reported_ = true;
  config_.owner->report(UcxFailed{channel.peer->id, {reason, std::move(error)}});
}

void UcxLoop::lose_channel(UcxChannel& channel, ucs_status_t status) {
  fail_channel(channel, Reason::lost,
               {VMEM_ERROR_LOST, status, fmt::format("{} is lost: {}", channel.peer->address, ucx().words(status))});
}

void UcxLoop::on_endpoint_error(void* arg, ucp_ep_h, ucs_status_t status) {
  auto& channel = *static_cast<UcxChannel*>(arg);
  channel.loop->lose_channel(channel, status);
}

}  // namespace vmem::rdma
