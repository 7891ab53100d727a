#include "rdma/ucx_transport.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/log.hpp"
#include "rdma/send_check.hpp"
#include "rdma/ucx_keys.hpp"

namespace vmem::rdma {
namespace {

// How often the workers are progressed before the sockets are looked at, unless idle() slept.
constexpr std::uint64_t kTurnsBetweenSockets = 64;

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
  VMEM_ASSIGN(crypto_, Crypto::load());
  VMEM_ASSIGN(const UcxRef ucx, Ucx::load());
  VMEM_ASSIGN(context_, UcxContext::create(ucx, config_.settings));
  VMEM_TRY(check_header_room());
  Lobby::Config lobby{.crypto = crypto_,
                      .secret = config_.secret,
                      .self = {config_.self, config_.parameters, {}},
                      .open = [this] { return open_entrance(); },
                      .clock = config_.clock,
                      .listen = config_.listen,
                      .handshake_us = config_.handshake_us};
  VMEM_ASSIGN(lobby_, Lobby::create(std::move(lobby)));
  epoll_ = FileDescriptor(::epoll_create1(EPOLL_CLOEXEC));
  wakeup_ = FileDescriptor(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  VMEM_TRY(watch(lobby_->descriptor(), kLobbyKey));
  return watch(wakeup_.get(), kWakeupKey);
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
  if (lobby_ == nullptr) return;
  take_commands();
  for (auto& [peer, link] : links_) fail_link(*link, Reason::closed, {VMEM_ERROR_LOST, 0, "the transport ends"});
  settle();
}

Result<std::unique_ptr<Slab>> UcxTransport::register_slab(Bytes memory) {
  VMEM_ASSIGN(UcxMemory region, UcxMemory::map(context_, memory));
  VMEM_TRY(slabs_.add(memory, region.get()));
  return std::make_unique<UcxSlab>(slabs_, std::move(region), memory);
}

Result<PeerId> UcxTransport::connect(const std::string& address, std::uint64_t deadline_us) {
  VMEM_ASSIGN(const SocketAddress parsed, SocketAddress::parse(address));
  VMEM_TRY(lobby_->may_connect(parsed));
  PeerId peer{};
  {
    const std::lock_guard lock(mutex_);
    peer = PeerId{++last_peer_};
    outstanding_.emplace(peer, 0);
  }
  std::vector<Command> commands;
  commands.emplace_back(Connect{peer, parsed, deadline_us});
  post(std::move(commands));
  return peer;
}

void UcxTransport::close(PeerId peer) {
  std::vector<Command> commands;
  commands.emplace_back(Close{peer});
  post(std::move(commands));
}

Result<std::unique_ptr<UcxSend>> UcxTransport::prepare(const Send& send) {
  VMEM_TRY(check_send(send));
  auto prepared = std::make_unique<UcxSend>();
  prepared->transport = this;
  prepared->peer = send.peer;
  prepared->deadline_us = send.deadline_us;
  prepared->header.assign(send.header.begin(), send.header.end());
  for (const ConstBytes span : send.payload) {
    VMEM_ASSIGN(void* const memory, slabs_.find(span));
    prepared->memory = static_cast<ucp_mem_h>(memory);
    prepared->spans.push_back({const_cast<std::byte*>(span.data()), span.size()});
  }
  return prepared;
}

Status UcxTransport::send(std::span<Send> sends) {
  std::vector<Command> commands;
  Status result;
  for (Send& send : sends) send.id = {};
  for (Send& send : sends) {
    auto prepared = prepare(send);
    if (!prepared) {
      result = std::unexpected(std::move(prepared).error());
      break;
    }
    const std::lock_guard lock(mutex_);
    if (const auto count = outstanding_.find(send.peer); count != outstanding_.end()) {
      if (count->second == kMostOutstanding) {
        result = fail(VMEM_ERROR_OUT_OF_MEMORY,
                      fmt::format("{} messages to one peer are under way, which is the most", kMostOutstanding));
        break;
      }
      ++count->second;
    }
    send.id = (*prepared)->id = SendId{++last_send_};
    commands.emplace_back(*std::move(prepared));
  }
  if (!commands.empty()) post(std::move(commands));
  return result;
}

void UcxTransport::post(std::vector<Command> commands) {
  bool asleep = false;
  {
    const std::lock_guard lock(mutex_);
    std::ranges::move(commands, std::back_inserter(commands_));
    asleep = std::exchange(idle_, false);
  }
  if (asleep) wake();
}

bool UcxTransport::take_commands() {
  std::vector<Command> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
  }
  for (Command& command : commands) std::visit([&](auto& each) { run(std::move(each)); }, command);
  return !commands.empty();
}

void UcxTransport::run(Connect command) {
  auto link = std::make_unique<UcxLink>();
  link->transport = this;
  link->peer = command.peer;
  link->by_us = true;
  link->address = command.address.text();
  link->deadline_us = command.deadline_us;
  deadlines_.add(command.deadline_us, link->peer);
  links_.emplace(command.peer, std::move(link));
  lobby_->connect(static_cast<std::uint64_t>(command.peer), command.address, command.deadline_us);
}

void UcxTransport::run(Close command) {
  if (UcxLink* link = find(command.peer))
    fail_link(*link, Reason::closed,
              {VMEM_ERROR_LOST, 0, fmt::format("the connection to {} was closed", link->address)});
}

void UcxTransport::run(std::unique_ptr<UcxSend> send) {
  UcxLink* link = find(send->peer);
  if (link == nullptr || link->failure) {
    const UcxFailure failure =
        link ? *link->failure : UcxFailure{Reason::lost, {VMEM_ERROR_LOST, 0, "the peer of this send is gone"}};
    if (link != nullptr) {
      const std::lock_guard lock(mutex_);
      --outstanding_[send->peer];
    }
    return events_.push({send->peer, SendFailed{send->id, failure.reason, failure.error}});
  }
  UcxSend& kept = *send;
  kept.link = link;
  deadlines_.add(kept.deadline_us, link->peer);
  link->sends.emplace(&kept, std::move(send));
  if (link->connected) return start_send(kept);
  link->held.push_back(&kept);
}

bool UcxTransport::progress() {
  bool did = take_commands();
  did |= progress_workers();
  did |= expire();
  did |= settle();
  if (std::exchange(sockets_due_, false) || ++turns_ % kTurnsBetweenSockets == 0) did |= check_sockets();
  return did;
}

void UcxTransport::idle(std::uint64_t most_us) {
  {
    const std::lock_guard lock(mutex_);
    if (!commands_.empty()) return;
    idle_ = true;
  }
  int ready = 1;
  if (arm_workers()) {
    epoll_event event;
    const auto most_ms = static_cast<int>(std::min<std::uint64_t>((most_us + 999) / 1000, 60'000));
    ready = ::epoll_wait(epoll_.get(), &event, 1, most_ms);
  }
  // What is there to do may first need UCX's own thread to run: its connections are accepted there.
  if (ready > 0) std::this_thread::yield();
  sockets_due_ = true;
  const std::lock_guard lock(mutex_);
  idle_ = false;
}

void UcxTransport::wake() noexcept {
  const std::uint64_t one = 1;
  (void)!::write(wakeup_.get(), &one, sizeof(one));
}

}  // namespace vmem::rdma
