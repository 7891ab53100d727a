#include "rdma/transport/ucx/ucx_transport.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <thread>

#include "rdma/transport/ucx/farewell.hpp"

namespace vmem::rdma {
namespace {

// Calls of progress() between checks of the sockets; idle() makes a check due at once.
constexpr std::uint64_t kTurnsBetweenSockets = 64;

// Limit of pending events and reports. Payloads that arrive with their message are kept until they
// are claimed: 32 KiB each.
constexpr std::size_t kMostUndelivered = 1024;

class UcxSlab final : public Slab {
 public:
  UcxSlab(SlabMap& slabs, SlabMap::Place place, Bytes memory) : slabs_(slabs), place_(place), memory_(memory) {}
  ~UcxSlab() override { slabs_.remove(place_); }
  UcxSlab(const UcxSlab&) = delete;
  UcxSlab& operator=(const UcxSlab&) = delete;
  Bytes memory() const noexcept override { return memory_; }

 private:
  SlabMap& slabs_;
  SlabMap::Place place_;
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

// ---- start and end ----

Status UcxTransport::start() {
  if (config_.channels == 0 || config_.channels > kMostChannels)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{} channels to another node; from 1 to {} can be", config_.channels, kMostChannels));
  enter_thread();
  VMEM_ASSIGN(crypto_, Crypto::load());
  VMEM_ASSIGN(const UcxRef ucx, Ucx::load());
  VMEM_ASSIGN(context_, UcxContext::create(ucx, config_.settings));
  VMEM_TRY(check_header_room());
  VMEM_ASSIGN(UcxAddressChecker checker, UcxAddressChecker::create(ucx, config_.settings));
  poll_.open();
  VMEM_TRY(poll_.watch(inbox_.descriptor(), UcxPoll::kWakeupKey));
  VMEM_TRY(start_admission());
  links_.emplace(
      UcxLinks::Parts{*this, loops_, peers_, sender_, poll_, *admission_, *config_.receiver, *config_.clock});
  introductions_.emplace(UcxIntroductions::Parts{config_, crypto_, tls_, context_, loops_, peers_, poll_, *links_},
                         std::move(checker));
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
  others_.assign(poll_.descriptor(), code);
  if (code) return fail(VMEM_ERROR_INTERNAL, "epoll cannot be waited for: " + code.message(), code.value());
  VMEM_ASSIGN(admission_,
              Admission::create(connections_,
                                {.self = config_.self,
                                 .parameters = config_.parameters,
                                 .listen = config_.listen,
                                 .tls = tls_,
                                 .crypto = crypto_.get(),
                                 .clock = config_.clock,
                                 .channels = static_cast<std::uint16_t>(config_.channels),
                                 .handshake_us = config_.handshake_us},
                                [this](Admission::SetUp outcome) { introductions_->admit(std::move(outcome)); }));
  return {};
}

Status UcxTransport::open_loops() {
  const bool threads = config_.channel_threads && config_.channels > 1;
  for (std::uint32_t i = 0; i < config_.channels; ++i) {
    VMEM_ASSIGN(auto loop, UcxLoop::create({.owner = this,
                                            .crypto = crypto_,
                                            .context = context_,
                                            .clock = config_.clock,
                                            .slabs = &slabs_,
                                            .enter_thread = config_.gpu ? config_.gpu->enter_thread : nullptr}));
    if (!threads) VMEM_TRY(poll_.watch(loop->descriptor(), UcxPoll::kLoopKey));
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

UcxTransport::~UcxTransport() {
  threads_.clear();
  enter_thread();
  if (others_.is_open()) others_.release();
  if (!admission_) return;
  admission_->close();
  // Real time: the configured clock may stand still.
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(kFarewellUs);
  auto patience = UcxLinks::Patience::wait_for_peers;
  do {
    links_->end_all(patience);
    for (const auto& loop : loops_) loop->carry_out();
    if (!take_commands() && !links_->has_left()) idle(1000);
    check_sockets();
    if (std::chrono::steady_clock::now() >= end) patience = UcxLinks::Patience::wait_no_more;
  } while (!links_->empty());
}

// ---- any thread ----

void UcxTransport::enter_thread() const {
  if (config_.gpu && config_.gpu->enter_thread) config_.gpu->enter_thread();
}

Result<std::unique_ptr<Slab>> UcxTransport::register_slab(Bytes memory) {
  const auto map = [&] { return UcxMemory::map(context_, memory); };
  if (!config_.gpu || !config_.gpu->without_context) return add_slab(memory, map());
  std::optional<Result<UcxMemory>> mapped;
  config_.gpu->without_context([&] { mapped.emplace(map()); });
  // Some versions of UCX need a context for it.
  return add_slab(memory, *mapped ? *std::move(mapped) : map());
}

Result<std::unique_ptr<Slab>> UcxTransport::register_gpu_slab(Bytes memory) {
  if (!config_.gpu) return Transport::register_gpu_slab(memory);
  return add_slab(memory, UcxMemory::map(context_, memory, number_of(config_.gpu->type)));
}

Result<std::unique_ptr<Slab>> UcxTransport::add_slab(Bytes memory, Result<UcxMemory> mapped) {
  VMEM_ASSIGN(UcxMemory region, std::move(mapped));
  VMEM_ASSIGN(const SlabMap::Place place, slabs_.add(memory, std::make_shared<UcxMemory>(std::move(region))));
  return std::make_unique<UcxSlab>(slabs_, place, memory);
}

Result<PeerId> UcxTransport::connect(const std::string& address, std::uint64_t deadline_us) {
  VMEM_ASSIGN(const SocketAddress parsed, SocketAddress::parse(address));
  VMEM_TRY(admission_->may_use(parsed, "connecting to"));
  const UcxPeerRef peer = peers_.add(parsed.text(), true);
  inbox_.post(Connect{peer, parsed, deadline_us});
  return peer->id;
}

Status UcxTransport::send(std::span<Send> sends) {
  for (Send& send : sends) send.id = {};
  for (Send& send : sends) {
    VMEM_ASSIGN(std::unique_ptr<UcxSend> prepared, sender_.prepare(send));
    VMEM_TRY(peers_.begin_send(send.peer, *prepared));
    send.id = prepared->id;
    if (prepared->peer == nullptr) {
      const UcxFailure gone = peer_is_gone();
      tell({send.peer, SendFailed{send.id, gone.reason, gone.error}});
    } else if (prepared->peer->connected.load(std::memory_order_acquire)) {
      sender_.dispatch(std::move(prepared));
    } else {
      inbox_.post(std::move(prepared));
    }
  }
  return {};
}

// The progressing thread polls the events: wake it.
void UcxTransport::tell(Event event) {
  events_.push(std::move(event));
  inbox_.nudge();
}

// While this is true, messages stay in the network and hold up their senders.
bool UcxTransport::full() { return events_.pending() >= kMostUndelivered || inbox_.size() >= kMostUndelivered; }

// ---- the progressing thread ----

bool UcxTransport::take_commands() {
  std::vector<Command> commands = inbox_.take();
  for (Command& command : commands) std::visit([&](auto& each) { run(std::move(each)); }, command);
  return !commands.empty();
}

void UcxTransport::run(const Connect& command) {
  links_->add(command.peer, command.deadline_us);
  admission_->connect(static_cast<std::uint64_t>(command.peer->id), command.address, 0, 0, command.deadline_us);
}

std::span<const std::unique_ptr<UcxLoop>> UcxTransport::own_loops() const {
  return threads_.empty() ? std::span(loops_) : std::span(loops_).first(0);
}

bool UcxTransport::progress() {
  if (!std::exchange(entered_, true)) enter_thread();
  bool did = take_commands();
  for (const auto& loop : own_loops()) did |= loop->progress();
  did |= links_->expire();
  did |= links_->settle();
  if (std::exchange(sockets_due_, false) || ++turns_ % kTurnsBetweenSockets == 0) did |= check_sockets();
  const std::uint64_t told = events_.pushed();
  return std::exchange(told_, told) != told || did;
}

bool UcxTransport::check_sockets() {
  std::array<epoll_event, 64> room;
  bool did = false;
  for (const epoll_event& event : poll_.ready(room)) {
    UcxLink* const link = links_->find(PeerId{event.data.u64});
    if (link == nullptr) continue;
    if (!introductions_->advance(*link)) links_->socket_is_ready(*link);
    did = true;
  }
  did |= connections_.poll() != 0;
  did |= admission_->expire();
  return introductions_->refresh_trust() || did;
}

void UcxTransport::idle(std::uint64_t most_us) {
  if (!inbox_.arm()) return;
  bool may_sleep = events_.pushed() == told_;
  for (const auto& loop : own_loops()) may_sleep = loop->arm() && may_sleep;
  std::size_t ready = 1;
  if (may_sleep) {
    if (!std::exchange(waits_for_others_, true))
      others_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                         [this](const boost::system::error_code&) { waits_for_others_ = false; });
    ready = connections_.run_one_for(std::chrono::microseconds(most_us));
  }
  // The work may first need UCX's own thread, which accepts connections: let it run.
  if (ready > 0) std::this_thread::yield();
  for (const auto& loop : own_loops()) loop->disarm();
  sockets_due_ = true;
  inbox_.disarm();
}

}  // namespace vmem::rdma
