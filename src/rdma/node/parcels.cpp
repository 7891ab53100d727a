#include "rdma/node/parcels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace vmem::rdma {
namespace {

using wire::Kind;

// For a parcel there and back; a connection that takes longer is closed.
constexpr std::uint64_t kParcelUs = 2'000'000;

// A parcel's body: the topic, then all bytes that travel in the header.
constexpr std::size_t kTopicBytes = sizeof(std::uint32_t);
constexpr std::size_t kMostInline = wire::kMostBodyBytes - kTopicBytes;

std::optional<Parcels::Topic> topic_in(ConstBytes body) {
  if (body.size() < kTopicBytes) return std::nullopt;
  std::uint32_t topic = 0;
  std::memcpy(&topic, body.data(), kTopicBytes);
  if (topic >= Parcels::kTopics) return std::nullopt;
  return Parcels::Topic{topic};
}

}  // namespace

Parcels::Pool::Pool(std::size_t buffers) : memory_(std::make_unique_for_overwrite<std::byte[]>(buffers * kMostBytes)) {
  free_.reserve(buffers);
  for (std::size_t i = 0; i < buffers; ++i) free_.push_back(memory_.get() + i * kMostBytes);
}

Bytes Parcels::Pool::take() {
  if (free_.empty()) return {};
  std::byte* const buffer = free_.back();
  free_.pop_back();
  return {buffer, kMostBytes};
}

Result<std::unique_ptr<Parcels>> Parcels::create(Node& node, std::size_t buffers) {
  std::unique_ptr<Parcels> parcels(new Parcels(node, buffers));
  VMEM_TRY(parcels->open());
  return parcels;
}

Status Parcels::open() {
  VMEM_ASSIGN(incoming_slab_, node_.transport().register_slab(incoming_.all()));
  VMEM_ASSIGN(outgoing_slab_, node_.transport().register_slab(outgoing_.all()));
  node_.add(*this);
  added_ = true;
  return {};
}

Parcels::~Parcels() {
  if (added_) node_.remove(*this);
}

Status Parcels::send(PeerId to, Topic topic, ConstBytes bytes) {
  if (bytes.size() > kMostBytes)
    return fail(VMEM_ERROR_INVALID_VALUE,
                fmt::format("a message of {} bytes; the most is {}", bytes.size(), kMostBytes));
  const auto number = static_cast<std::uint32_t>(topic);
  std::vector<std::byte> body(kTopicBytes);
  std::memcpy(body.data(), &number, kTopicBytes);
  Buffer buffer(nullptr, GiveBack{});
  if (bytes.size() <= kMostInline) {
    body.insert(body.end(), bytes.begin(), bytes.end());
  } else {
    buffer = take(outgoing_);
    if (!buffer) return fail(VMEM_ERROR_OUT_OF_MEMORY, "all buffers for messages to other nodes are in use");
    std::ranges::copy(bytes, buffer.get());
  }
  const ConstBytes payload[] = {ConstBytes(buffer.get(), buffer ? bytes.size() : 0)};
  const NodeIdentity self = node_.self();
  VMEM_ASSIGN(const auto header,
              wire::write({.version = node_.peers().version(to),
                           .kind = Kind::parcel,
                           .request = {static_cast<std::uint64_t>(self.id),
                                       Epoch{static_cast<std::uint64_t>(self.incarnation)}, ++last_sequence_},
                           .payload_bytes = payload[0].size()},
                          body));
  Send send{.peer = to, .header = header, .deadline_us = node_.clock().now_us() + kParcelUs};
  if (buffer) send.payload = payload;
  VMEM_TRY(node_.transport().send({&send, 1}));
  if (buffer) leaving_.emplace(send.id, std::move(buffer));
  node_.pings().send_if_quiet(to, kQuietUs);
  return {};
}

std::span<const Kind> Parcels::kinds() const {
  static constexpr std::array kKinds = {Kind::parcel};
  return kKinds;
}

std::optional<Claim> Parcels::claim(const Peer& from, const wire::Parsed& message, std::uint64_t payload_bytes) {
  const auto topic = topic_in(message.body);
  if (!topic || message.body.size() != kTopicBytes || payload_bytes > kMostBytes || quiescing_) return std::nullopt;
  Buffer buffer = take(incoming_);
  if (!buffer) return std::nullopt;
  const Bytes destination(buffer.get(), payload_bytes);
  arriving_.emplace(++last_token_, Arriving{from, *topic, payload_bytes, std::move(buffer)});
  return Claim{destination, last_token_, node_.clock().now_us() + kParcelUs};
}

void Parcels::landed(std::uint64_t token) {
  const auto found = arriving_.extract(token);
  if (found.empty()) return;
  const Arriving& parcel = found.mapped();
  deliver(parcel.from, parcel.topic, {parcel.buffer.get(), parcel.bytes});
}

void Parcels::request(const Peer& from, const wire::Parsed& message) {
  if (const auto topic = topic_in(message.body)) deliver(from, *topic, message.body.subspan(kTopicBytes));
}

void Parcels::deliver(const Peer& from, Topic topic, ConstBytes bytes) {
  if (const Receive& receive = receivers_[std::size_t(topic)]; receive && !quiescing_) receive(from, bytes);
}

}  // namespace vmem::rdma
