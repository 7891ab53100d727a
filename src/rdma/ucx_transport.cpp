#include "rdma/ucx_transport.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/log.hpp"
#include "rdma/farewell.hpp"
#include "rdma/send_check.hpp"
#include "rdma/ucx_keys.hpp"

namespace vmem::rdma {
namespace {

// How often the workers are progressed before the sockets are looked at, unless idle() slept.
constexpr std::uint64_t kTurnsBetweenSockets = 64;

// Payloads that come along with their message are kept until they are claimed: 32 KiB each.
constexpr std::size_t kMostUndelivered = 1024;

class UcxSlab final : public Slab {
 public:
  UcxSlab(SlabMap& slabs, UcxMemory region, Bytes memory)
      : slabs_(slabs), region_(std::move(region)), memory_(memory) {}
  ~UcxSlab() override { slabs_.remove(memory_); }
  UcxSlab(const UcxSlab&) = delete;
  UcxSlab& operator=(const UcxSlab&) = delete;
  Bytes memory() const noexcept override { return memory_; }

 private:
  SlabMap& slabs_;
  UcxMemory region_;
  Bytes memory_;
};

}  // namespace

Result<std::unique_ptr<Transport>> create_ucx_transport(UcxConfig config) {
  return UcxTransport::create(std::move(config));
}

Result<std::unique_ptr<UcxTransport>> UcxTransport::create(UcxConfig config) {
  std::unique_ptr<UcxTransport> transport(new UcxTransport(std::move(config)));
  VMEM_TRY(transport->start());
  return transport;
}

Status UcxTransport::start() {
  if (config_.channels == 0 || config_.channels > kMostChannels)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{} channels to another node; from 1 to {} can be", config_.channels, kMostChannels));
  VMEM_ASSIGN(crypto_, Crypto::load());
  VMEM_ASSIGN(const UcxRef ucx, Ucx::load());
  VMEM_ASSIGN(context_, UcxContext::create(ucx, config_.settings));
  VMEM_TRY(check_header_room());
  VMEM_ASSIGN(checker_, UcxAddressChecker::create(ucx, config_.settings));
  epoll_ = FileDescriptor(::epoll_create1(EPOLL_CLOEXEC));
  VMEM_TRY(watch(inbox_.descriptor(), kWakeupKey));
  VMEM_TRY(start_admission());
  return open_loops();
}

Status UcxTransport::start_admission() {
  if (config_.keyring && config_.certificates)
    return fail(VMEM_ERROR_INVALID_OPTION, "secrets and certificates cannot be used together: give one of both");
  if (config_.keyring) {
    VMEM_ASSIGN(tls_, TlsContext::create(crypto_, config_.keyring));
  } else if (config_.certificates) {
    VMEM_ASSIGN(tls_, TlsContext::create(config_.certificates));
  }
  boost::system::error_code code;
  others_.assign(epoll_.get(), code);
  if (code) return fail(VMEM_ERROR_INTERNAL, "epoll cannot be waited for: " + code.message(), code.value());
  VMEM_ASSIGN(admission_,
              stream::Admission::create(connections_,
                                        {.self = config_.self,
                                         .parameters = config_.parameters,
                                         .listen = config_.listen,
                                         .tls = tls_,
                                         .crypto = crypto_.get(),
                                         .clock = config_.clock,
                                         .channels = static_cast<std::uint16_t>(config_.channels),
                                         .handshake_us = config_.handshake_us},
                                        [this](stream::Admission::Outcome outcome) { admit(std::move(outcome)); }));
  return {};
}

Status UcxTransport::open_loops() {
  const bool threads = config_.channel_threads && config_.channels > 1;
  for (std::uint32_t i = 0; i < config_.channels; ++i) {
    VMEM_ASSIGN(auto loop, UcxLoop::create({this, crypto_, context_, config_.clock, &slabs_}));
    if (!threads) VMEM_TRY(watch(loop->descriptor(), kLoopKey));
    loops_.push_back(std::move(loop));
  }
  for (const auto& loop : loops_) {
    if (threads) threads_.push_back(std::make_unique<ProgressThread>(*loop));
  }
  return {};
}

Status UcxTransport::check_header_room() const {
  VMEM_ASSIGN(const UcxWorkerRef worker, UcxWorker::create(context_));
  VMEM_ASSIGN(const std::size_t most, worker->most_header_bytes());
  if (most >= kMostSealedBytes) return {};
  return fail(VMEM_ERROR_UNSUPPORTED,
              fmt::format("UCX's transports take headers of {} bytes, {} are needed", most, kMostSealedBytes));
}

Status UcxTransport::watch(int descriptor, std::uint64_t key) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = key}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) == 0) return {};
  return fail(VMEM_ERROR_INTERNAL, fmt::format("epoll_ctl: {}", std::strerror(errno)), errno);
}

UcxTransport::~UcxTransport() {
  threads_.clear();
  if (others_.is_open()) others_.release();
  if (!admission_) return;
  admission_->close();
  // Not by the clock that was given, which may stand still.
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(kFarewellUs);
  bool waits = true;
  do {
    for (auto& [peer, link] : links_) {
      fail_link(*link, Reason::closed, {VMEM_ERROR_LOST, 0, "the transport ends"});
      if (!waits) end_leaving(*link);
    }
    settle();
    for (const auto& loop : loops_) loop->carry_out();
    if (!take_commands() && left_.empty()) idle(1000);
    check_sockets();
    waits = std::chrono::steady_clock::now() < end;
  } while (!links_.empty());
}

Result<std::unique_ptr<Slab>> UcxTransport::register_slab(Bytes memory) {
  VMEM_ASSIGN(UcxMemory region, UcxMemory::map(context_, memory));
  VMEM_TRY(slabs_.add(memory, region.get()));
  return std::make_unique<UcxSlab>(slabs_, std::move(region), memory);
}

UcxPeerRef UcxTransport::add_peer(std::string address, bool by_us) {
  auto peer = std::make_shared<UcxPeer>();
  peer->by_us = by_us;
  peer->address = std::move(address);
  const std::lock_guard lock(mutex_);
  peer->id = PeerId{++last_peer_};
  peers_.emplace(peer->id, peer);
  return peer;
}

Result<PeerId> UcxTransport::connect(const std::string& address, std::uint64_t deadline_us) {
  VMEM_ASSIGN(const SocketAddress parsed, SocketAddress::parse(address));
  VMEM_TRY(admission_->may_use(parsed, "connecting to"));
  const UcxPeerRef peer = add_peer(parsed.text(), true);
  inbox_.post(Connect{peer, parsed, deadline_us});
  return peer->id;
}

void UcxTransport::close(PeerId peer) { inbox_.post(Close{peer}); }

Result<std::unique_ptr<UcxSend>> UcxTransport::prepare(const Send& send) {
  VMEM_TRY(check_send(send));
  auto prepared = std::make_unique<UcxSend>();
  prepared->deadline_us = send.deadline_us;
  prepared->header.assign(send.header.begin(), send.header.end());
  prepared->payload_bytes = payload_bytes(send.payload);
  for (const ConstBytes span : send.payload) {
    VMEM_ASSIGN(void* const memory, slabs_.find(span));
    prepared->memory = static_cast<ucp_mem_h>(memory);
    prepared->spans.push_back({const_cast<std::byte*>(span.data()), span.size()});
  }
  return prepared;
}

Status UcxTransport::send(std::span<Send> sends) {
  for (Send& send : sends) send.id = {};
  for (Send& send : sends) {
    VMEM_ASSIGN(std::unique_ptr<UcxSend> prepared, prepare(send));
    {
      const std::lock_guard lock(mutex_);
      if (const auto known = peers_.find(send.peer); known != peers_.end()) {
        prepared->peer = known->second;
        if (prepared->peer->outstanding.load(std::memory_order_relaxed) >= kMostOutstanding)
          return fail(VMEM_ERROR_OUT_OF_MEMORY,
                      fmt::format("{} messages to one peer are under way, which is the most", kMostOutstanding));
        prepared->peer->outstanding.fetch_add(1, std::memory_order_relaxed);
      }
      send.id = prepared->id = SendId{++last_send_};
    }
    if (prepared->peer == nullptr) {
      tell({send.peer, SendFailed{send.id, Reason::lost, {VMEM_ERROR_LOST, 0, "the peer of this send is gone"}}});
    } else if (prepared->peer->connected.load(std::memory_order_acquire)) {
      dispatch(std::move(prepared));
    } else {
      inbox_.post(std::move(prepared));
    }
  }
  return {};
}

// Over the channel that has the least to send.
void UcxTransport::dispatch(std::unique_ptr<UcxSend> send) {
  UcxPeer& peer = *send->peer;
  const std::lock_guard lock(peer.mutex);
  if (peer.over) return fail_unsent(*send, {Reason::lost, {VMEM_ERROR_LOST, 0, "the peer of this send is gone"}});
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

// Who progresses polls.
void UcxTransport::tell(Event event) {
  events_.push(std::move(event));
  inbox_.nudge();
}

// What waits in the network meanwhile holds its senders up.
bool UcxTransport::full() { return events_.pending() >= kMostUndelivered || inbox_.size() >= kMostUndelivered; }

bool UcxTransport::take_commands() {
  std::vector<Command> commands = inbox_.take();
  for (Command& command : commands) std::visit([&](auto& each) { run(std::move(each)); }, command);
  return !commands.empty();
}

void UcxTransport::run(const Connect& command) {
  auto link = std::make_unique<UcxLink>();
  link->peer = command.peer;
  link->deadline_us = command.deadline_us;
  const PeerId peer = command.peer->id;
  deadlines_.add(command.deadline_us, peer);
  links_.emplace(peer, std::move(link));
  admission_->connect(static_cast<std::uint64_t>(peer), command.address, 0, 0, command.deadline_us);
}

void UcxTransport::run(Close command) {
  if (UcxLink* link = find(command.peer))
    fail_link(*link, Reason::closed,
              {VMEM_ERROR_LOST, 0, fmt::format("the connection to {} was closed", link->peer->address)});
}

// One that was posted before its peer was connected.
void UcxTransport::run(std::unique_ptr<UcxSend> send) {
  UcxLink* const link = find(send->peer->id);
  if (link == nullptr || link->failure) {
    const UcxFailure gone{Reason::lost, {VMEM_ERROR_LOST, 0, "the peer of this send is gone"}};
    return fail_unsent(*send, link == nullptr ? gone : *link->failure);
  }
  if (link->connected) return dispatch(std::move(send));
  deadlines_.add(send->deadline_us, send->peer->id);
  link->held.push_back(std::move(send));
}

void UcxTransport::fail_unsent(const UcxSend& send, const UcxFailure& failure) {
  send.peer->outstanding.fetch_sub(1, std::memory_order_relaxed);
  tell({send.peer->id, SendFailed{send.id, failure.reason, failure.error}});
}

void UcxTransport::run(UcxReport report) {
  std::visit([&](auto& each) { handle(std::move(each)); }, report);
}

bool UcxTransport::progress() {
  bool did = take_commands();
  if (threads_.empty()) {
    for (const auto& loop : loops_) did |= loop->progress();
  }
  did |= expire();
  did |= settle();
  if (std::exchange(sockets_due_, false) || ++turns_ % kTurnsBetweenSockets == 0) did |= check_sockets();
  const std::uint64_t told = events_.pushed();
  return std::exchange(told_, told) != told || did;
}

void UcxTransport::idle(std::uint64_t most_us) {
  if (!inbox_.arm()) return;
  bool may_sleep = events_.pushed() == told_;
  const auto inline_loops = threads_.empty() ? std::span(loops_) : std::span(loops_).first(0);
  for (const auto& loop : inline_loops) may_sleep = loop->arm() && may_sleep;
  std::size_t ready = 1;
  if (may_sleep) {
    if (!std::exchange(waits_for_others_, true))
      others_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                         [this](const boost::system::error_code&) { waits_for_others_ = false; });
    ready = connections_.run_one_for(std::chrono::microseconds(most_us));
  }
  // What is there to do may first need UCX's own thread to run: its connections are accepted there.
  if (ready > 0) std::this_thread::yield();
  for (const auto& loop : inline_loops) loop->disarm();
  sockets_due_ = true;
  inbox_.disarm();
}

}  // namespace vmem::rdma
