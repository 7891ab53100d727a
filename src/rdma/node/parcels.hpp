// Messages of up to kMostBytes between parts of two nodes, for what is neither a page nor a fixed
// record: the directory's messages, the registry's. A parcel may be lost, and parcels may overtake
// each other; whoever needs an answer sends again. A ping follows one to a node that has been
// quiet, so that a connection which carries nothing any more is closed. Whoever made it then tries
// the node's next address.
//
// Small ones travel in the message's header. Larger ones pass through buffers that are registered
// once; without a free one a parcel is not sent, or not received.
//
// Thread: the node's.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "rdma/node/node.hpp"

namespace vmem::rdma {

class Parcels final : public Service {
 public:
  static constexpr std::size_t kMostBytes = 64 << 10;
  // A parcel sent this soon after the node's last message has no ping; its repetition has one.
  static constexpr std::uint64_t kQuietUs = 100'000;
  enum class Topic : std::uint32_t { directory, registry_request, registry_reply };
  static constexpr std::size_t kTopics = 3;
  using Receive = std::function<void(const Peer& from, ConstBytes bytes)>;

  // Registers `buffers` buffers for each direction, and adds itself to the node, which outlives it.
  // Errors: those of Transport::register_slab.
  static Result<std::unique_ptr<Parcels>> create(Node& node, std::size_t buffers = 64);
  ~Parcels() override;

  // Who receives parcels of the topic; nobody ({}): they are dropped.
  void receive(Topic topic, Receive receive) { receivers_[std::size_t(topic)] = std::move(receive); }
  // The bytes are copied. Errors: OUT_OF_MEMORY if all buffers are in use; INVALID_VALUE beyond
  // kMostBytes; those of Transport::send.
  Status send(PeerId to, Topic topic, ConstBytes bytes);

  std::span<const wire::Kind> kinds() const override;
  std::optional<Claim> claim(const Peer& from, const wire::Parsed& message, std::uint64_t payload_bytes) override;
  void landed(std::uint64_t token) override;
  void receive_failed(std::uint64_t token) override { arriving_.erase(token); }
  void request(const Peer& from, const wire::Parsed& message) override;
  void sent(SendId id) override { leaving_.erase(id); }
  void send_failed(SendId id) override { leaving_.erase(id); }
  bool step() override { return false; }
  void quiesce() override { quiescing_ = true; }
  bool quiesced() const override { return arriving_.empty() && leaving_.empty(); }

 private:
  // One direction's buffers. A Buffer gives itself back.
  class Pool {
   public:
    explicit Pool(std::size_t buffers);
    Bytes all() { return {memory_.get(), free_.capacity() * kMostBytes}; }
    Bytes take();  // empty: none is free
    void put(Bytes buffer) { free_.push_back(buffer.data()); }

   private:
    std::unique_ptr<std::byte[]> memory_;
    std::vector<std::byte*> free_;  // never reallocated
  };
  struct GiveBack {
    Pool* pool = nullptr;
    void operator()(std::byte* buffer) const { pool->put({buffer, kMostBytes}); }
  };
  using Buffer = std::unique_ptr<std::byte, GiveBack>;
  struct Arriving {
    Peer from;
    Topic topic{};
    std::size_t bytes = 0;
    Buffer buffer;
  };

  Parcels(Node& node, std::size_t buffers) : node_(node), incoming_(buffers), outgoing_(buffers) {}
  Status open();
  static Buffer take(Pool& pool) { return {pool.take().data(), GiveBack{&pool}}; }
  void deliver(const Peer& from, Topic topic, ConstBytes bytes);

  Node& node_;
  std::array<Receive, kTopics> receivers_;
  Pool incoming_, outgoing_;
  std::unique_ptr<Slab> incoming_slab_, outgoing_slab_;
  std::map<std::uint64_t, Arriving> arriving_;  // by claim token
  std::map<SendId, Buffer> leaving_;
  std::uint64_t last_token_ = 0, last_sequence_ = 0;
  bool quiescing_ = false;
  bool added_ = false;
};

}  // namespace vmem::rdma
