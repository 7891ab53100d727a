#include "rdma/trust/admission.hpp"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/log.hpp"
#include "base/sizes.hpp"

namespace vmem::rdma {
namespace {

using boost::asio::posix::stream_descriptor;

constexpr int kBacklog = 128;
constexpr int kMostAcceptedAtOnce = 16;
constexpr std::chrono::milliseconds kRest{100};

std::string words(int code) { return std::strerror(code); }
Bytes bytes_of(Hello& hello) { return std::as_writable_bytes(std::span(&hello, 1)); }
std::unexpected<Error> refuse(std::string why) { return fail(VMEM_ERROR_INVALID_OPTION, std::move(why)); }

void set_no_delay(int socket) {
  const int on = 1;
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

std::uint64_t thread_cpu_us() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000 + static_cast<std::uint64_t>(time.tv_nsec) / 1000;
}

std::string hexadecimal(std::uint64_t address) { return fmt::format("{:#x}", address); }

// A node that has none says 0. `text`: how a value is written in the message.
Status same(std::string_view what, std::uint64_t theirs, std::uint64_t ours, std::string_view option,
            std::string (*text)(std::uint64_t)) {
  if (theirs == ours || theirs == 0 || ours == 0) return {};
  return refuse(fmt::format("the peer's {} is {}, this node's {}: {} has to be equal on all nodes", what, text(theirs),
                            text(ours), option));
}

}  // namespace

// Sums the processor time of this thread from start() to stop().
class Admission::CpuMeter {
 public:
  // A start without a stop before it, after an exception, drops that period.
  void start() {
    began_us_ = thread_cpu_us();
    runs_ = true;
  }
  void stop() {
    if (std::exchange(runs_, false)) us_ += thread_cpu_us() - began_us_;
  }
  std::uint64_t us() const noexcept { return us_; }

 private:
  bool runs_ = false;
  std::uint64_t began_us_ = 0, us_ = 0;
};

struct Admission::Pending {
  enum class Stage : std::uint8_t { connecting, securing, sending, reading, done };
  explicit Pending(boost::asio::io_context& context) : descriptor(context) {}
  std::uint64_t key = 0;
  Hello::Role role = Hello::Role::initiator;
  std::string address;
  std::string host;  // for the limits, of incoming TLS only (HandshakeBudget::host_of)
  CpuMeter cost;     // from accept4() to charge()
  std::uint64_t deadline_us = 0;
  Stage stage = Stage::connecting;
  ByteStream stream;
  stream_descriptor descriptor;
  Hello ours, theirs;
  std::size_t sent = 0, received = 0;  // bytes of the Hellos
  bool proved = false;
  bool wants_write = false;
};

Admission::Admission(boost::asio::io_context& context, Config config, OnOutcome on_outcome)
    : context_(context),
      config_(std::move(config)),
      on_outcome_(std::move(on_outcome)),
      acceptor_(context),
      rest_(context),
      budget_(config_.limits) {}

Result<std::unique_ptr<Admission>> Admission::create(boost::asio::io_context& context, Config config,
                                                     OnOutcome on_outcome) {
  std::unique_ptr<Admission> admission(new Admission(context, std::move(config), std::move(on_outcome)));
  if (!admission->config_.listen.empty()) VMEM_TRY(admission->listen());
  return admission;
}

Admission::~Admission() { close(); }

Status Admission::may_use(const SocketAddress& address, const char* what) const {
  if (config_.tls || address.is_loopback()) return {};
  return refuse(
      fmt::format("{} {} needs a secret or certificates: without them only addresses of this machine itself are used "
                  "(127.0.0.1, [::1]); give all nodes the same secret file",
                  what, address.text()));
}

// ---- listening ----

Status Admission::listen() {
  VMEM_ASSIGN(const SocketAddress address, SocketAddress::parse(config_.listen));
  VMEM_TRY(may_use(address, "listening on"));
  int socket = -1;
  if (!config_.tls) {
    VMEM_ASSIGN(LocalListener local, LocalListener::create(*config_.crypto, address));
    address_ = local.address();
    local_.emplace(std::move(local));
    socket = local_->socket();
  } else {
    listener_ =
        OwnDescriptor(FileDescriptor(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)));
    const int on = 1;
    (void)::setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (!listener_ || ::bind(listener_.get(), address.get(), address.size()) != 0 ||
        ::listen(listener_.get(), kBacklog) != 0) {
      const int code = errno;
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("cannot listen on {}: {}", config_.listen, words(code)), code);
    }
    VMEM_ASSIGN(const SocketAddress bound, SocketAddress::bound_to(listener_.get()));
    address_ = bound.text();
    socket = listener_.get();
  }
  boost::system::error_code code;
  acceptor_.assign(socket, code);
  if (code) return fail(VMEM_ERROR_INTERNAL, "the listener cannot be waited for: " + code.message(), code.value());
  wait_for_connections();
  return {};
}

void Admission::wait_for_connections() {
  acceptor_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& code) {
    if (code || closed_) return;
    accept();
  });
}

void Admission::accept() {
  for (int i = 0; i < kMostAcceptedAtOnce; ++i) {
    CpuMeter cost;
    cost.start();
    FileDescriptor socket(::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) {
      admit(std::move(socket), cost);
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      const int why = errno;
      if (const auto times = not_accepted_.next(); times.logged)
        VMEM_LOG_WARN("no connection can be accepted on {} now: {} ({} times so far)", address_, words(why),
                      times.count);
      rest_.expires_after(kRest);
      rest_.async_wait([this](const boost::system::error_code& code) {
        if (!code && !closed_) wait_for_connections();
      });
      return;
    }
    if (errno != ECONNABORTED && errno != EINTR) break;
  }
  wait_for_connections();
}

void Admission::admit(FileDescriptor socket, CpuMeter cost) {
  auto pending = std::make_shared<Pending>(context_);
  pending->cost = cost;
  pending->role = Hello::Role::responder;
  pending->address = address_;
  if (config_.tls) {
    const auto from = SocketAddress::connected_to(socket.get());
    if (!from) return;  // the peer has reset it: there is no host to charge
    pending->address = from->text();
    pending->host = HandshakeBudget::host_of(*from);
    if (!budget_.admit(pending->host, config_.clock->now_us())) return turn_away(pending->address, std::move(socket));
  }
  make_room(*pending);
  pending->deadline_us = config_.clock->now_us() + config_.handshake_us;
  pending->stage = Pending::Stage::securing;
  auto stream = secure(std::move(socket), TlsRole::server, "");
  if (!stream) {
    VMEM_LOG_DEBUG("a connection to {} was refused: {}", address_, stream.error().message);
    return charge(*pending);
  }
  pending->stream = *std::move(stream);
  boost::system::error_code code;
  pending->descriptor.assign(pending->stream.descriptor(), code);
  if (code) {
    pending->stream.shut();
    return charge(*pending);
  }
  pending_.push_back(pending);
  next_deadline_us_ = 0;
  advance(pending);
}

// The cost of turning away is not charged: a host in debt would sink deeper with each attempt, and
// stay locked out long after the last one.
void Admission::turn_away(const std::string& address, FileDescriptor socket) {
  SetUp outcome;
  outcome.address = address;
  outcome.failed = Error{VMEM_ERROR_INVALID_OPTION, 0,
                         "its host has used up the processor time that this node gives to those who prove nothing"};
  socket.reset();
  on_outcome_(std::move(outcome));
}

bool Admission::is_unproved_incoming(const Pending& pending) const {
  return config_.tls && pending.key == 0 && !pending.proved;
}

// At the limit, ends the oldest unproved incoming connection, else the oldest proved one: a node
// that knows the secret proves it within milliseconds. A host at its own limit displaces only
// itself.
void Admission::make_room(Pending& for_this) {
  const std::string& host = for_this.host;
  const auto of_host = [&](const PendingRef& each) { return each->key == 0 && each->host == host; };
  const auto all = std::ranges::count_if(pending_, [](const PendingRef& each) { return each->key == 0; });
  const auto same_host = std::ranges::count_if(pending_, of_host);
  const bool host_is_full = config_.tls && static_cast<std::size_t>(same_host) >= config_.most_pending_per_host;
  if (static_cast<std::size_t>(all) < config_.most_pending && !host_is_full) return;
  const auto may_go = [&](const PendingRef& each) { return each->key == 0 && (!host_is_full || of_host(each)); };
  auto goes = std::ranges::find_if(pending_, [&](const PendingRef& each) { return may_go(each) && !each->proved; });
  if (goes == pending_.end()) goes = std::ranges::find_if(pending_, may_go);
  if (goes == pending_.end()) return;
  const PendingRef pending = *goes;
  for_this.cost.stop();  // its end is charged to the ended connection
  pending->cost.start();
  report(pending, Reason::refused, Error{VMEM_ERROR_LOST, 0, "too many connections are being set up"});
  for_this.cost.start();
}

Result<ByteStream> Admission::secure(FileDescriptor socket, TlsRole role, const std::string& host) const {
  if (config_.tls) {
    set_no_delay(socket.get());
    return ByteStream::over_tls(std::move(socket), config_.tls, role, host);
  }
  if (role == TlsRole::server) VMEM_TRY(check_peer_user(socket.get()));
  return ByteStream(std::move(socket));
}

// ---- connecting ----

void Admission::connect(std::uint64_t key, const SocketAddress& address, std::uint64_t link, std::uint16_t index,
                        std::uint64_t deadline_us) {
  auto pending = std::make_shared<Pending>(context_);
  pending->key = key;
  pending->address = address.text();
  pending->deadline_us = deadline_us;
  pending->ours.link = link;
  pending->ours.index = index;
  pending_.push_back(pending);
  next_deadline_us_ = 0;
  sockaddr_un local{};
  if (!config_.tls) {
    const auto path = socket_path(address);
    if (!path) return refuse_soon(pending, Reason::refused, path.error());
    local = *path;
  }
  FileDescriptor socket(
      ::socket(config_.tls ? address.family() : AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const auto* const to = config_.tls ? address.get() : reinterpret_cast<const sockaddr*>(&local);
  const socklen_t size = config_.tls ? address.size() : static_cast<socklen_t>(sizeof(local));
  if (!socket || (::connect(socket.get(), to, size) != 0 && errno != EINPROGRESS)) {
    // Without a socket file nobody listens at the address.
    const int code = errno == ENOENT ? ECONNREFUSED : errno;
    return refuse_soon(pending, Reason::lost, {VMEM_ERROR_LOST, code, refused_words(pending->address, code)});
  }
  auto stream = secure(std::move(socket), TlsRole::client, address.host());
  if (!stream) return refuse_soon(pending, Reason::refused, stream.error());
  pending->stream = *std::move(stream);
  boost::system::error_code code;
  pending->descriptor.assign(pending->stream.descriptor(), code);
  if (code) return refuse_soon(pending, Reason::lost, {VMEM_ERROR_INTERNAL, code.value(), code.message()});
  pending->wants_write = true;
  wait_ready(pending);
}

// Nodes with secrets listen on a TCP port, nodes without on a Unix socket: neither kind can connect
// to the other.
std::string Admission::refused_words(const std::string& address, int code) const {
  const char* const hint = code != ECONNREFUSED ? ""
                           : config_.tls        ? "; a node without secrets or certificates is not reached with them"
                                         : "; a node with secrets or certificates is reached with the same ones only";
  return fmt::format("connecting to {}: {}{}", address, words(code), hint);
}

void Admission::refuse_soon(const PendingRef& pending, Reason reason, Error error) {
  boost::asio::post(context_, [this, pending, reason, error = std::move(error)] { report(pending, reason, error); });
}

void Admission::cancel(std::uint64_t key) {
  for (auto each = pending_.begin(); each != pending_.end();) {
    const PendingRef pending = *each++;
    if (pending->key != key) continue;
    pending->stage = Pending::Stage::done;
    if (pending->descriptor.is_open()) pending->descriptor.release();
    pending->stream.shut();
    pending_.remove(pending);
  }
}

void Admission::close() {
  closed_ = true;
  if (acceptor_.is_open()) acceptor_.release();
  rest_.cancel();
  listener_.reset();
  local_.reset();
  while (!pending_.empty()) {
    const PendingRef pending = pending_.front();
    pending->stage = Pending::Stage::done;
    if (pending->descriptor.is_open()) pending->descriptor.release();
    pending->stream.shut();
    pending_.pop_front();
  }
}

bool Admission::expire() {
  const std::uint64_t now = config_.clock->now_us();
  if (now < next_deadline_us_) return false;
  next_deadline_us_ = UINT64_MAX;
  std::vector<PendingRef> late;
  for (const PendingRef& each : pending_) {
    if (now >= each->deadline_us) {
      late.push_back(each);
    } else {
      next_deadline_us_ = std::min(next_deadline_us_, each->deadline_us);
    }
  }
  for (const PendingRef& each : late) {
    each->cost.start();
    report(
        each, Reason::timeout,
        Error{VMEM_ERROR_TIMEOUT, 0,
              fmt::format("{} did not set the connection up before its deadline: it does not answer", each->address)});
  }
  return !late.empty();
}

// ---- handshakes ----

void Admission::wait_ready(const PendingRef& pending) {
  pending->descriptor.async_wait(pending->wants_write ? stream_descriptor::wait_write : stream_descriptor::wait_read,
                                 [this, pending](const boost::system::error_code& code) {
                                   if (code || pending->stage == Pending::Stage::done) return;
                                   pending->cost.start();
                                   advance(pending);
                                 });
}

void Admission::advance(const PendingRef& pending) {
  pending->wants_write = false;
  const auto done = try_stages(*pending);
  if (!done) {
    const bool broke = done.error().status == VMEM_ERROR_LOST;
    Error error = done.error();
    if (error.native == ECONNREFUSED) {
      error.message = refused_words(pending->address, ECONNREFUSED);
    } else if (pending->key != 0) {
      error.message = fmt::format("connecting to {}: {}", pending->address, error.message);
    }
    return report(pending, broke ? Reason::lost : Reason::refused, std::move(error));
  }
  if (*done) return report(pending, Reason::closed, std::nullopt);
  wait_ready(pending);
  pending->cost.stop();
}

// True once both Hellos are exchanged and the peer's is accepted.
Result<bool> Admission::try_stages(Pending& pending) {
  using Stage = Pending::Stage;
  if (pending.stage == Stage::connecting) {
    int code = 0;
    socklen_t size = sizeof(code);
    if (::getsockopt(pending.stream.descriptor(), SOL_SOCKET, SO_ERROR, &code, &size) != 0) code = errno;
    if (code != 0) return fail(VMEM_ERROR_LOST, words(code), code);
    if (!config_.tls) VMEM_TRY(check_peer_user(pending.stream.descriptor()));
    pending.stage = Stage::securing;
  }
  if (pending.stage == Stage::securing) {
    VMEM_ASSIGN(const bool secured, pending.stream.handshake());
    if (!secured) return false;
    pending.proved = true;
    pending.stage = pending.role == Hello::Role::initiator ? Stage::sending : Stage::reading;
    pending.ours.version = config_.version;
    pending.ours.role = pending.role;
    pending.ours.channels = config_.channels;
    pending.ours.node = static_cast<std::uint64_t>(config_.self.id);
    pending.ours.incarnation = static_cast<std::uint64_t>(config_.self.incarnation);
    pending.ours.base = config_.parameters.base;
    pending.ours.space_bytes = config_.parameters.space_bytes;
    pending.ours.page_bytes = config_.parameters.page_bytes;
  }
  // The initiator sends its Hello first. Both nodes send theirs before they check the other's.
  const bool initiates = pending.role == Hello::Role::initiator;
  if (initiates && pending.sent < sizeof(Hello)) {
    VMEM_ASSIGN(const bool sent, send_hello(pending));
    if (!sent) return false;
  }
  if (pending.received < sizeof(Hello)) {
    VMEM_ASSIGN(const bool received, read_hello(pending));
    if (!received) return false;
    if (!initiates) {
      pending.ours.index = pending.theirs.index;
      pending.ours.link = pending.theirs.index == 0 ? config_.crypto->random() | 1 : pending.theirs.link;
    }
  }
  if (!initiates) {
    VMEM_ASSIGN(const bool sent, send_hello(pending));
    if (!sent) return false;
  }
  VMEM_TRY(check(pending.theirs, initiates ? Hello::Role::responder : Hello::Role::initiator));
  return true;
}

Result<bool> Admission::send_hello(Pending& pending) {
  const Bytes hello = bytes_of(pending.ours);
  while (pending.sent < sizeof(Hello)) {
    const ConstBytes rest[] = {hello.subspan(pending.sent)};
    VMEM_ASSIGN(const std::size_t taken, pending.stream.write(rest));
    pending.sent += taken;
    pending.wants_write = taken == 0;
    if (taken == 0) break;
  }
  VMEM_ASSIGN(const bool flushed, pending.stream.flush());
  pending.wants_write |= !flushed;
  return flushed && pending.sent == sizeof(Hello);
}

Result<bool> Admission::read_hello(Pending& pending) {
  const Bytes hello = bytes_of(pending.theirs);
  while (pending.received < sizeof(Hello)) {
    VMEM_ASSIGN(const std::size_t got, pending.stream.read(hello.subspan(pending.received)));
    if (got == 0) return false;
    pending.received += got;
  }
  return true;
}

Status Admission::check(const Hello& theirs, Hello::Role role) const {
  if (theirs.magic != Hello{}.magic) return fail(VMEM_ERROR_INVALID_VALUE, "what connected is no vmem node");
  if (!versions_fit(theirs.version, config_.version))
    return refuse(
        fmt::format("the peer speaks version {} of the protocol, this node version {}: they may differ by "
                    "one; run a newer release on {}",
                    theirs.version, config_.version, theirs.version < config_.version ? "it" : "this node"));
  if (theirs.role != role || theirs.channels == 0)
    return fail(VMEM_ERROR_INVALID_VALUE, "the peer introduced itself in a way that cannot be");
  if (theirs.node == 0) return refuse("the peer's node id is 0: ids begin with 1");
  // Also refuses a reflected connection, in which this node would talk to itself.
  if (theirs.node == static_cast<std::uint64_t>(config_.self.id))
    return refuse(fmt::format("the peer's node id is {}, as is this node's: each needs an id of its own", theirs.node));
  const ClusterParameters& ours = config_.parameters;
  VMEM_TRY(same("start of the address space", theirs.base, ours.base, "--base", hexadecimal));
  VMEM_TRY(same("address space size", theirs.space_bytes, ours.space_bytes, "--space", exact_bytes));
  return same("page size", theirs.page_bytes, ours.page_bytes, "--page", exact_bytes);
}

void Admission::report(const PendingRef& pending, Reason reason, std::optional<Error> failed) {
  if (std::exchange(pending->stage, Pending::Stage::done) == Pending::Stage::done) return;
  if (pending->descriptor.is_open()) pending->descriptor.release();
  pending_.remove(pending);
  if (failed) pending->stream.shut();
  on_outcome_({.key = pending->key,
               .address = pending->address,
               // Destroyed at the callback's return, while the meter runs.
               .stream = std::move(pending->stream),
               .ours = pending->ours,
               .theirs = pending->theirs,
               .reason = reason,
               .failed = std::move(failed)});
  charge(*pending);
}

void Admission::charge(Pending& pending) {
  pending.stream = {};
  pending.cost.stop();
  if (is_unproved_incoming(pending)) {
    budget_.pay(pending.host, pending.cost.us(), config_.clock->now_us());
  } else if (config_.tls && pending.key == 0) {
    budget_.proved(pending.host, config_.clock->now_us());
  }
}

}  // namespace vmem::rdma
