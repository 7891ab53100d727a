#include "rdma/transport/stream/stream_transport.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <utility>

#include "base/log.hpp"
#include "rdma/transport/send_check.hpp"

namespace vmem::rdma {

Result<std::unique_ptr<Transport>> create_stream_transport(StreamConfig config) {
  return stream::StreamTransport::create(std::move(config));
}

namespace stream {
namespace {

// Wait for a farewell after a payload channel broke: it travels on channel 0 and may arrive later.
constexpr std::chrono::milliseconds kFarewellTime{100};
constexpr std::uint64_t kRefreshUs = 1'000'000;  // period of TlsContext::refresh()
// From this number of unpolled events on, channels stop reading from the sockets.
constexpr std::size_t kMostUndelivered = 1024;

Error lost(std::string why) { return {VMEM_ERROR_LOST, 0, std::move(why)}; }

std::string farewell_words(Reason reason) {
  return reason == Reason::timeout ? "a deadline passed there" : "it closed the connection";
}

}  // namespace

// ---- any thread ----

Result<std::unique_ptr<StreamTransport>> StreamTransport::create(StreamConfig config) {
  std::unique_ptr<StreamTransport> transport(new StreamTransport(std::move(config)));
  VMEM_TRY(transport->start());
  return transport;
}

Status StreamTransport::start() {
  if (config_.channels == 0 || config_.channels > kMostStreamChannels)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{} channels to another node; from 1 to {} can be", config_.channels, kMostStreamChannels));
  VMEM_ASSIGN(crypto_, Crypto::load());
  if (config_.keyring && config_.certificates)
    return fail(VMEM_ERROR_INVALID_OPTION, "secrets and certificates cannot be used together: give one of both");
  if (config_.keyring) {
    VMEM_ASSIGN(tls_, TlsContext::create(crypto_, config_.keyring, config_.tls_records_per_key));
  } else if (config_.certificates) {
    VMEM_ASSIGN(tls_, TlsContext::create(config_.certificates, config_.tls_records_per_key));
  }
  Admission::Config admission{.self = config_.self,
                              .parameters = config_.parameters,
                              .listen = config_.listen,
                              .tls = tls_,
                              .crypto = crypto_.get(),
                              .clock = config_.clock,
                              .channels = static_cast<std::uint16_t>(config_.channels),
                              .version = config_.version,
                              .handshake_us = config_.handshake_us,
                              .limits = config_.handshake_limits};
  VMEM_ASSIGN(admission_, Admission::create(main_, std::move(admission),
                                            [this](Admission::SetUp outcome) { admitted(std::move(outcome)); }));
  next_refresh_us_ = config_.clock->now_us() + kRefreshUs;
  if (config_.channels == 1 || !config_.channel_threads) return {};
  lanes_.start(config_.channels);
  return {};
}

StreamTransport::~StreamTransport() {
  if (admission_) admission_->close();
  std::vector<PeerId> all;
  for (const auto& [id, link] : links_) all.push_back(id);
  for (const PeerId id : all) fail_link(id, Reason::closed, lost("the transport ends"));
  // Lanes close their channels without waiting for a peer.
  while (!links_.empty()) main_.run_one_for(std::chrono::milliseconds(10));
  lanes_.stop();
}

template <class Work>
void StreamTransport::on_main(Work work) {
  boost::asio::post(main_, std::move(work));
}

template <class Work>
void StreamTransport::on_lane(const std::shared_ptr<Channel>& channel, Work work) {
  boost::asio::post(channel->lane(), [channel, work = std::move(work)]() mutable { work(*channel); });
}

Result<std::unique_ptr<Slab>> StreamTransport::register_slab(Bytes memory) {
  VMEM_ASSIGN(const SlabMap::Place place, slabs_.add(memory, nullptr));
  return std::make_unique<MappedSlab>(slabs_, place, memory);
}

Result<PeerId> StreamTransport::connect(const std::string& address, std::uint64_t deadline_us) {
  VMEM_ASSIGN(const SocketAddress parsed, SocketAddress::parse(address));
  VMEM_TRY(admission_->may_use(parsed, "connecting to"));
  const PeerId id = peers_.add();
  on_main([this, id, parsed, deadline_us] { begin(id, parsed, deadline_us); });
  return id;
}

void StreamTransport::close(PeerId peer) {
  on_main([this, peer] {
    if (Link* const link = find(peer))
      fail_link(peer, Reason::closed, lost(fmt::format("the connection to {} was closed", link->name)));
  });
}

Status StreamTransport::send(std::span<Send> sends) {
  for (Send& send : sends) send.id = {};
  std::vector<Posted> posted;
  Status status;
  for (Send& send : sends) {
    status = check_send(send);
    for (const ConstBytes span : send.payload) {
      if (!status) break;
      if (const auto found = slabs_.find(span); !found) status = std::unexpected(found.error());
    }
    if (!status) break;
    Posted each{.to = send.peer, .deadline_us = send.deadline_us, .message = {}, .peer = nullptr};
    each.message.header.assign(send.header.begin(), send.header.end());
    each.message.payload.assign(send.payload.begin(), send.payload.end());
    auto numbered = peers_.begin_send(send.peer);
    if (!numbered) {
      status = std::unexpected(std::move(numbered).error());
      break;
    }
    send.id = each.message.id = numbered->id;
    each.peer = std::move(numbered->peer);
    posted.push_back(std::move(each));
  }
  if (!posted.empty()) on_main([this, posted = std::move(posted)]() mutable { run(std::move(posted)); });
  return status;
}

void StreamTransport::poll(std::vector<Event>& events) {
  events_.take(events);
  if (!held_back_.exchange(false)) return;
  on_main([this] {
    for (const auto& [id, link] : links_) {
      if (!std::exchange(link->paused, false)) continue;
      for (const LinkChannel& each : link->channels) {
        if (each.channel) on_lane(each.channel, [](Channel& channel) { channel.resume(); });
      }
    }
  });
}

void StreamTransport::report(ChannelId channel, Report report) {
  on_main([this, channel, report = std::move(report)]() mutable {
    std::visit([&](auto& each) { handle(channel, each); }, report);
  });
}

// ---- the progressing thread ----

bool StreamTransport::progress() {
  const bool worked = main_.poll() != 0;
  const bool late = expire();
  const std::uint64_t told = events_.pushed();
  return (std::exchange(told_, told) != told) || worked || late;
}

void StreamTransport::idle(std::uint64_t most_us) {
  if (events_.pushed() != told_) return;
  main_.run_one_for(std::chrono::microseconds(most_us));
}

bool StreamTransport::expire() {
  bool late = admission_->expire();
  late |= refresh_trust();
  std::vector<PeerId> expired;
  deadlines_.for_expired(config_.clock->now_us(), [&](PeerId peer) { expired.push_back(peer); });
  for (const PeerId id : expired) {
    Link* const link = find(id);
    if (link == nullptr || link->failure) continue;
    late = true;
    fail_link(id, Reason::timeout,
              {VMEM_ERROR_TIMEOUT, 0, fmt::format("{} did not answer before the deadline", link->name)});
  }
  return late;
}

// Fails links whose secret was removed from the file, or whose certificates are no longer trusted.
bool StreamTransport::refresh_trust() {
  const std::uint64_t now = config_.clock->now_us();
  if (!tls_ || now < next_refresh_us_) return false;
  next_refresh_us_ = now + kRefreshUs;
  tls_->refresh();
  std::vector<PeerId> distrusted;
  for (const auto& [id, link] : links_) {
    if (!link->channels.empty() && !link->failure && !tls_->still_trusts(link->proved)) distrusted.push_back(id);
  }
  for (const PeerId id : distrusted) {
    const Link& link = *links_.at(id);
    fail_link(id, Reason::refused,
              {VMEM_ERROR_INVALID_OPTION, 0, fmt::format("{} {}", link.name, tls_->distrust_of(link.proved))});
  }
  return !distrusted.empty();
}

StreamTransport::Link* StreamTransport::find(PeerId id) {
  const auto found = links_.find(id);
  return found == links_.end() ? nullptr : found->second.get();
}

void StreamTransport::begin(PeerId id, const SocketAddress& address, std::uint64_t deadline_us) {
  auto link = std::make_unique<Link>();
  link->peer = peers_.at(id);
  link->by_us = true;
  link->address = address;
  link->name = address.text();
  link->deadline_us = deadline_us;
  deadlines_.add(deadline_us, id);
  links_.emplace(id, std::move(link));
  admission_->connect(static_cast<std::uint64_t>(id), address, 0, 0, deadline_us);
}

// At the limit, fails the oldest half-made link of `identity` for a new one, as Admission does.
void StreamTransport::make_room(const std::string& identity) {
  std::size_t half_made = 0;
  PeerId oldest{};
  for (const auto& [id, link] : links_) {
    if (link->by_us || link->connected || link->failure || link->proved.identity != identity) continue;
    if (half_made++ == 0 || id < oldest) oldest = id;
  }
  if (half_made < kMostHalfMadeLinks) return;
  std::string why = fmt::format("{} links of '{}' lack connections, which is the most", half_made, identity);
  if (std::has_single_bit(++refused_))
    VMEM_LOG_WARN("a link from {} is ended: {} ({} so far)", find(oldest)->name, why, refused_);
  fail_link(oldest, Reason::refused, lost(std::move(why)));
}

// The link of a connection. Outgoing: the link that asked for it. Incoming: a new link for a first
// connection, else the half-made link with its token. Null: there is none.
StreamTransport::Link* StreamTransport::link_of(Admission::SetUp& outcome, PeerId& id) {
  if (outcome.key != 0) {
    id = PeerId{outcome.key};
    return find(id);
  }
  if (outcome.theirs.index == 0) {
    make_room(outcome.stream.peer().identity);
    auto link = std::make_unique<Link>();
    id = peers_.add();
    link->peer = peers_.at(id);
    link->name = outcome.address;
    link->deadline_us = config_.clock->now_us() + config_.handshake_us;
    deadlines_.add(link->deadline_us, id);
    return links_.emplace(id, std::move(link)).first->second.get();
  }
  for (const auto& [known, link] : links_) {
    if (link->by_us || link->token != outcome.theirs.link || link->connected) continue;
    id = known;
    return link.get();
  }
  return nullptr;
}

void StreamTransport::admitted(Admission::SetUp outcome) {
  if (outcome.failed) {
    if (outcome.key != 0) return fail_link(PeerId{outcome.key}, outcome.reason, *std::move(outcome.failed));
    // A connection that merely ended, as in a port scan, needs no warning.
    if (outcome.failed->status == VMEM_ERROR_LOST) {
      VMEM_LOG_DEBUG("a connection from {} ended: {}", outcome.address, outcome.failed->message);
    } else if (std::has_single_bit(++refused_)) {  // an unproved client can cause any number
      VMEM_LOG_WARN("a connection from {} was refused: {} ({} so far)", outcome.address, outcome.failed->message,
                    refused_);
    }
    return;
  }
  PeerId id{};
  Link* const link = link_of(outcome, id);
  if (link == nullptr || link->failure) return;  // closes the socket
  joined(id, *link, std::move(outcome));
}

void StreamTransport::joined(PeerId id, Link& link, Admission::SetUp outcome) {
  const Hello& theirs = outcome.theirs;
  const NodeIdentity node{NodeId{theirs.node}, Incarnation{theirs.incarnation}};
  const std::size_t index = outcome.ours.index;
  if (index == 0) {
    link.node = node;
    link.version = outcome.version();
    link.proved = outcome.stream.peer();
    if (!tls_) {
      if (FileDescriptor process = peer_process(outcome.stream.descriptor()))
        link.process = std::make_shared<const FileDescriptor>(std::move(process));
    }
    link.token = link.by_us ? theirs.link : outcome.ours.link;
    link.channels.resize(std::size_t{1} + std::min(config_.channels, std::uint32_t{theirs.channels}));
  }
  const bool fits = outcome.stream.peer().same_as(link.proved) && index < link.channels.size() &&
                    !link.channels[index].channel && node == link.node && theirs.index == index;
  if (!fits)
    return fail_link(
        id, Reason::refused,
        {VMEM_ERROR_INVALID_VALUE, 0, fmt::format("{} made a connection that is no part of this link", link.name)});
  Context& lane = lanes_.of(index, main_);
  ChannelOwner& owner = *this;
  link.channels[index].channel = std::make_shared<Channel>(
      lane, owner, ChannelId{id, static_cast<std::uint32_t>(index)}, std::move(outcome.stream));
  if (index == 0 && link.by_us) {
    for (std::size_t i = 1; i < link.channels.size(); ++i)
      admission_->connect(static_cast<std::uint64_t>(id), *link.address, link.token, static_cast<std::uint16_t>(i),
                          link.deadline_us);
  }
  if (std::ranges::all_of(link.channels, [](const LinkChannel& each) { return each.channel != nullptr; }))
    established(id, link);
}

void StreamTransport::established(PeerId id, Link& link) {
  link.connected = true;
  deadlines_.remove(link.deadline_us, id);
  std::string path = tls_ ? "tls" : "unix";
  if (link.channels.size() > 2) path += fmt::format(", {} channels", link.channels.size() - 1);
  events_.push({id, Connected{link.node, link.by_us, std::move(path), link.proved.identity, link.process,
                              static_cast<std::uint32_t>(link.channels.size() - 1), link.version}});
  for (const LinkChannel& each : link.channels) on_lane(each.channel, [](Channel& channel) { channel.start(); });
  for (Posted& send : std::exchange(link.held, {})) dispatch(link, std::move(send));
}

// ---- sends ----

void StreamTransport::run(std::vector<Posted> sends) {
  for (Posted& send : sends) {
    Link* const link = find(send.to);
    if (link == nullptr || link->failure) {
      refuse(send, link == nullptr ? Failure{Reason::lost, lost("the peer of this send is gone")} : *link->failure);
      continue;
    }
    deadlines_.add(send.deadline_us, send.to);
    link->sends.emplace(send.message.id, Sending{send.deadline_us, payload_bytes(send.message.payload), 0});
    if (link->connected) {
      dispatch(*link, std::move(send));
    } else {
      link->held.push_back(std::move(send));
    }
  }
}

void StreamTransport::refuse(const Posted& send, const Failure& failure) {
  if (send.peer) send.peer->outstanding.fetch_sub(1, std::memory_order_relaxed);
  events_.push({send.to, SendFailed{send.message.id, failure.reason, failure.error}});
}

void StreamTransport::dispatch(Link& link, Posted send) {
  Sending& sending = link.sends.at(send.message.id);
  if (sending.bytes != 0) {
    const auto least =
        std::ranges::min_element(link.channels.begin() + 1, link.channels.end(), {}, &LinkChannel::queued_bytes);
    sending.channel = static_cast<std::size_t>(least - link.channels.begin());
    least->queued_bytes += sending.bytes;
  }
  on_lane(link.channels[sending.channel].channel,
          [message = std::move(send.message)](Channel& channel) mutable { channel.send(std::move(message)); });
}

void StreamTransport::handle(ChannelId id, Written& written) {
  Link* const link = find(id.peer);
  if (link == nullptr) return;
  const auto sent = link->sends.extract(written.id);
  if (sent.empty()) return;
  deadlines_.remove(sent.mapped().deadline_us, id.peer);
  if (sent.mapped().channel != 0) link->channels[sent.mapped().channel].queued_bytes -= sent.mapped().bytes;
  link->peer->outstanding.fetch_sub(1, std::memory_order_relaxed);
  events_.push({id.peer, Sent{written.id}});
}

// ---- what arrives ----

void StreamTransport::hold_back(Link& link) {
  if (events_.pending() < kMostUndelivered) return;
  held_back_ = true;
  if (std::exchange(link.paused, true)) return;
  for (const LinkChannel& each : link.channels) on_lane(each.channel, [](Channel& channel) { channel.pause(); });
}

void StreamTransport::handle(ChannelId id, Arrived& arrived) {
  Link* const link = find(id.peer);
  if (link == nullptr || link->failure) return;
  events_.push({id.peer, Message{std::move(arrived.header), {}, 0}});
  hold_back(*link);
}

void StreamTransport::handle(ChannelId id, Announced& announced) {
  Link* const link = find(id.peer);
  if (link == nullptr || link->failure) return;
  LinkChannel& at = link->channels[id.index];
  const auto claim = config_.receiver->claim(id.peer, announced.header, announced.payload_bytes);
  if (claim && claim->destination.size() == announced.payload_bytes) {
    deadlines_.add(claim->deadline_us, id.peer);
    at.landing = Landing{std::move(announced.header), *claim};
    return on_lane(at.channel, [to = claim->destination](Channel& channel) { channel.take(to); });
  }
  if (claim) {
    VMEM_LOG_ERROR("{} bytes were claimed for a payload of {}", claim->destination.size(), announced.payload_bytes);
    events_.push({id.peer, ReceiveFailed{claim->token, {VMEM_ERROR_INTERNAL, 0, "claimed with another size"}}});
  }
  on_lane(at.channel, [](Channel& channel) { channel.skip(); });
}

void StreamTransport::handle(ChannelId id, Landed&) {
  Link* const link = find(id.peer);
  if (link == nullptr || link->failure || !link->channels[id.index].landing) return;
  Landing landing = *std::exchange(link->channels[id.index].landing, std::nullopt);
  deadlines_.remove(landing.claim.deadline_us, id.peer);
  events_.push({id.peer, Message{std::move(landing.header), landing.claim.destination, landing.claim.token}});
  hold_back(*link);
}

// ---- ends ----

void StreamTransport::handle(ChannelId id, Farewell& farewell) {
  if (Link* const link = find(id.peer))
    fail_link(id.peer, Reason::left, lost(fmt::format("{} left: {}", link->name, farewell.why)));
}

void StreamTransport::handle(ChannelId id, Broken& broken) {
  Link* const link = find(id.peer);
  if (link == nullptr || link->failure) return;
  broken.error.message = fmt::format("{}: {}", link->name, broken.error.message);
  if (id.index != 0 && broken.error.status == VMEM_ERROR_LOST) return suspect(id.peer, *link, std::move(broken.error));
  fail_link(id.peer, Reason::lost, std::move(broken.error));
}

void StreamTransport::suspect(PeerId id, Link& link, Error error) {
  if (link.suspicion) return;
  link.suspicion = std::move(error);
  auto timer = std::make_shared<boost::asio::steady_timer>(main_, kFarewellTime);
  timer->async_wait([this, id, timer](const boost::system::error_code& code) {
    if (code) return;
    if (Link* const suspected = find(id)) fail_link(id, Reason::lost, *suspected->suspicion);
  });
}

// Closes the link by force. Its operations fail, and the peer is gone, once all channels are closed
// and no longer access memory.
void StreamTransport::fail_link(PeerId id, Reason reason, Error error) {
  Link* const link = find(id);
  if (link == nullptr || link->failure) return;
  link->failure = Failure{reason, std::move(error)};
  admission_->cancel(static_cast<std::uint64_t>(id));
  const bool says_why = reason == Reason::closed || reason == Reason::timeout;
  for (LinkChannel& each : link->channels) {
    if (!each.channel) {
      each.closed = true;
      continue;
    }
    std::string farewell = &each == link->channels.data() && says_why ? farewell_words(reason) : "";
    on_lane(each.channel,
            [farewell = std::move(farewell)](Channel& channel) mutable { channel.close(std::move(farewell)); });
  }
  if (std::ranges::all_of(link->channels, &LinkChannel::closed)) forget(id);
}

void StreamTransport::handle(ChannelId id, Closed&) {
  Link* const link = find(id.peer);
  if (link == nullptr) return;
  link->channels[id.index].closed = true;
  if (std::ranges::all_of(link->channels, &LinkChannel::closed)) forget(id.peer);
}

void StreamTransport::forget(PeerId id) {
  const auto node = links_.extract(id);
  Link& link = *node.mapped();
  const Failure& failure = *link.failure;
  if (!link.connected) deadlines_.remove(link.deadline_us, id);
  for (const LinkChannel& each : link.channels) {
    if (!each.landing) continue;
    deadlines_.remove(each.landing->claim.deadline_us, id);
    events_.push({id, ReceiveFailed{each.landing->claim.token, failure.error}});
  }
  for (const auto& [send, sending] : link.sends) {
    deadlines_.remove(sending.deadline_us, id);
    link.peer->outstanding.fetch_sub(1, std::memory_order_relaxed);
    events_.push({id, SendFailed{send, failure.reason, failure.error}});
  }
  peers_.remove(id);
  // The owner never saw an incoming link that was not connected.
  if (link.connected || link.by_us) events_.push({id, Gone{failure.reason, failure.error}});
}

}  // namespace stream
}  // namespace vmem::rdma
