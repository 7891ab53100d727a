#include "rdma/transport/ucx/ucx_introductions.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "rdma/trust/local_socket.hpp"

namespace vmem::rdma {
namespace {

constexpr std::uint64_t kRefreshUs = 1'000'000;  // interval of checks of files with secrets

Error lost(std::string why, int native = 0) { return {VMEM_ERROR_LOST, native, std::move(why)}; }

Error not_connected(const UcxLink& link, const Error& why) {
  return lost(fmt::format("no connection to {}: {}", link.peer->address, why.message));
}

std::uint64_t key_of(const UcxLink& link) { return static_cast<std::uint64_t>(link.peer->id); }

}  // namespace

void UcxIntroductions::admit(Admission::SetUp outcome) {
  if (outcome.key != 0) {
    UcxLink* const link = parts_.links.find(PeerId{outcome.key});
    if (link == nullptr || link->failure) return;
    if (outcome.failed) return parts_.links.fail(*link, outcome.reason, *std::move(outcome.failed));
    return introduce(*link, std::move(outcome));
  }
  if (outcome.failed) {
    if (const auto times = refused_.next(); times.logged)
      VMEM_LOG_WARN("a connection from {} was refused: {} ({} so far)", outcome.address, outcome.failed->message,
                    times.count);
    return;
  }
  const std::uint64_t deadline_us = parts_.config.clock->now_us() + parts_.config.handshake_us;
  UcxLink& link = parts_.links.add(parts_.peers.add(outcome.address, false), deadline_us);
  introduce(link, std::move(outcome));
}

void UcxIntroductions::introduce(UcxLink& link, Admission::SetUp outcome) {
  link.node = {NodeId{outcome.theirs.node}, Incarnation{outcome.theirs.incarnation}};
  link.proved = outcome.stream.peer();
  link.peer->identity = link.proved.identity;
  link.peer->version = outcome.version();
  link.stream = std::move(outcome.stream);
  if (!parts_.tls) {
    if (FileDescriptor process = peer_process(link.stream.descriptor()))
      link.peer->process = std::make_shared<const FileDescriptor>(std::move(process));
  }
  Status opened = open_workers(link);
  if (opened) opened = parts_.poll.watch(link.stream.descriptor(), key_of(link));
  if (!opened) return parts_.links.fail(link, Reason::lost, std::move(opened).error());
  link.introduction.link = parts_.crypto->random();
  link.introduction.key = parts_.crypto->short_key();
  link.introduction.knows_cuda = parts_.config.gpu && parts_.config.gpu->type == UcxMemoryType::cuda;
  link.exchange = std::make_unique<UcxExchange>(link.introduction);
  advance_exchange(link);
}

// One worker per possible channel.
Status UcxIntroductions::open_workers(UcxLink& link) const {
  for (std::size_t i = 0; i < parts_.loops.size(); ++i) {
    VMEM_ASSIGN(UcxWorkerRef worker, UcxWorker::create(parts_.context));
    VMEM_ASSIGN(UcxAddress address, worker->address());
    link.workers.push_back(std::move(worker));
    link.introduction.addresses.push_back(std::move(address));
  }
  return {};
}

bool UcxIntroductions::advance(UcxLink& link) {
  if (link.exchange) {
    advance_exchange(link);
    return true;
  }
  if (link.check && !link.leaving) advance_check(link);
  return false;
}

void UcxIntroductions::advance_exchange(UcxLink& link) {
  if (link.failure) return;
  const auto done = link.exchange->advance(link.stream);
  if (!done) {
    const bool broke = done.error().status == VMEM_ERROR_LOST;
    return parts_.links.fail(link, broke ? Reason::lost : Reason::refused, not_connected(link, done.error()));
  }
  const auto until = link.exchange->wants_write() ? UcxPoll::Until::readable_or_writable : UcxPoll::Until::readable;
  if (const Status changed = parts_.poll.change(link.stream.descriptor(), key_of(link), until); !changed)
    return parts_.links.fail(link, Reason::lost, lost(changed.error().message, changed.error().native));
  if (*done) check_addresses(link);
}

void UcxIntroductions::check_addresses(UcxLink& link) {
  link.theirs = link.exchange->take();
  link.exchange.reset();
  auto check = checker_.start(link.theirs.addresses);
  if (!check) return parts_.links.fail(link, Reason::lost, std::move(check).error());
  link.check.emplace(*std::move(check));
  if (Status watched = parts_.poll.watch(link.check->descriptor(), key_of(link)); !watched)
    parts_.links.fail(link, Reason::lost, std::move(watched).error());
}

void UcxIntroductions::advance_check(UcxLink& link) {
  if (link.failure) return;
  const auto done = link.check->done();
  if (done && !*done) return;
  link.check.reset();
  if (done) return establish(link);
  const bool refused = done.error().status == VMEM_ERROR_INVALID_VALUE;
  parts_.links.fail(link, refused ? Reason::refused : Reason::lost, not_connected(link, done.error()));
}

// The initiator greets on its first channel and the responder answers: no greeting arrives before
// its receiver knows the link.
void UcxIntroductions::establish(UcxLink& link) {
  UcxIntroduction theirs = std::move(link.theirs);
  const auto acquaintance =
      std::make_shared<const UcxAcquaintance>(UcxAcquaintance{.node = link.node,
                                                              .our_link = link.introduction.link,
                                                              .their_link = theirs.link,
                                                              .send_key = theirs.key,
                                                              .receive_key = link.introduction.key});
  link.channels = static_cast<std::uint32_t>(std::min(link.workers.size(), theirs.addresses.size()));
  // What is host memory to UCX, it receives everywhere.
  const auto& gpu = parts_.config.gpu;
  link.peer->takes_gpu_memory = gpu && (gpu->type == UcxMemoryType::host || theirs.knows_cuda);
  link.peer->channels.store(link.channels, std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < link.channels; ++i) {
    FileDescriptor socket(::fcntl(link.stream.descriptor(), F_DUPFD_CLOEXEC, 0));
    if (!socket) {
      link.channels = i;
      return parts_.links.fail(link, Reason::lost, lost(fmt::format("a descriptor: {}", std::strerror(errno)), errno));
    }
    auto channel = std::make_unique<UcxChannel>();
    channel->peer = link.peer;
    channel->index = i;
    channel->greet_us = link.deadline_us;
    channel->acquaintance = acquaintance;
    channel->worker = std::move(link.workers[i]);
    parts_.loops[i]->post(
        UcxOpen{std::move(channel), std::move(theirs.addresses[i]), link.peer->by_us && i == 0, std::move(socket)});
  }
  link.workers.clear();
}

bool UcxIntroductions::refresh_trust() {
  const std::uint64_t now = parts_.config.clock->now_us();
  if (!parts_.tls || now < next_refresh_us_) return false;
  next_refresh_us_ = now + kRefreshUs;
  parts_.tls->refresh();
  bool did = false;
  parts_.links.for_each([&](UcxLink& link) {
    if (link.stream.descriptor() < 0 || link.failure || parts_.tls->still_trusts(link.proved)) return;
    did = true;
    parts_.links.fail(
        link, Reason::refused,
        {VMEM_ERROR_INVALID_OPTION, 0, fmt::format("{} {}", link.peer->address, parts_.tls->distrust_of(link.proved))});
  });
  return did;
}

}  // namespace vmem::rdma
