// One node of a test: a transport, a slab for its payloads, a receiver that claims from the slab's
// second half, and the events so far. Accounts for every send and claim.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "rdma/transport/transport.hpp"

namespace vmem::rdma {

inline constexpr std::size_t kSlabBytes = std::size_t{64} << 20;
inline constexpr std::uint64_t kSecondUs = 1'000'000;

inline ConstBytes bytes_of(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }
inline std::string text_of(ConstBytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// Claims consecutive places in its memory and wraps around at the end.
class ClaimingReceiver final : public Receiver {
 public:
  std::optional<Claim> claim(PeerId, ConstBytes header, std::uint64_t bytes) override {
    announced.push_back(text_of(header));
    if (refuse || bytes > memory.size()) return std::nullopt;
    if (bytes > memory.size() - next_) next_ = 0;
    const Claim made{memory.subspan(next_, bytes), ++last_token_, deadline_us};
    next_ += bytes;
    claimed.insert(made.token);
    return made;
  }
  Bytes memory;
  std::uint64_t deadline_us = 0;
  bool refuse = false;
  std::vector<std::string> announced;
  std::set<std::uint64_t> claimed;  // and not yet returned

 private:
  std::size_t next_ = 0;
  std::uint64_t last_token_ = 0;
};

class TestNode {
 public:
  TestNode() : memory_(kSlabBytes) { receiver.memory = Bytes(memory_).subspan(kSlabBytes / 2); }
  void start(std::unique_ptr<Transport> started) {
    transport = std::move(started);
    auto registered = transport->register_slab(memory_);
    ASSERT_TRUE(registered) << registered.error().message;
    slab_ = *std::move(registered);
  }
  void stop() {
    slab_.reset();
    transport.reset();
  }
  ~TestNode() { stop(); }

  // A part of the slab filled with a pattern that depends on `seed`.
  Bytes outgoing(std::size_t bytes, unsigned seed, std::size_t at = 0) {
    const Bytes span = Bytes(memory_).subspan(at, bytes);
    for (std::size_t i = 0; i < bytes; ++i) span[i] = pattern(i, seed);
    return span;
  }
  static std::byte pattern(std::size_t i, unsigned seed) {
    return static_cast<std::byte>((i * 31 + i / 251 + seed) & 0xff);
  }
  static bool has_pattern(ConstBytes bytes, unsigned seed) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] != pattern(i, seed)) return false;
    }
    return true;
  }

  SendId send(PeerId peer, std::string_view header, std::vector<ConstBytes> payload, std::uint64_t deadline_us) {
    Send send{.peer = peer, .header = bytes_of(header), .payload = payload, .deadline_us = deadline_us};
    const Status posted = transport->send({&send, 1});
    EXPECT_TRUE(posted) << posted.error().message;
    EXPECT_NE(send.id, SendId{});
    under_way.insert(send.id);
    return send.id;
  }

  // Progresses once and takes the events.
  bool step() {
    const bool did = transport->progress();
    take();
    return did;
  }
  void take() {
    const std::size_t before = events.size();
    transport->poll(events);
    for (std::size_t i = before; i < events.size(); ++i) std::visit([&](auto& what) { account(what); }, events[i].what);
  }

  template <class Kind>
  std::vector<std::pair<PeerId, Kind>> all() const {
    std::vector<std::pair<PeerId, Kind>> found;
    for (const Event& event : events) {
      if (const Kind* what = std::get_if<Kind>(&event.what)) found.emplace_back(event.peer, *what);
    }
    return found;
  }
  template <class Kind>
  std::size_t count() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(events, [](const Event& event) { return std::holds_alternative<Kind>(event.what); }));
  }
  bool connected() const { return count<Connected>() != 0; }
  PeerId peer() const { return all<Connected>().front().first; }
  const Gone* gone(PeerId peer) const {
    for (const Event& event : events) {
      if (const Gone* what = std::get_if<Gone>(&event.what); what != nullptr && event.peer == peer) return what;
    }
    return nullptr;
  }

  std::unique_ptr<Transport> transport;
  ClaimingReceiver receiver;
  std::vector<Event> events;
  std::set<SendId> under_way;
  std::function<void(const Message&)> on_message;

 private:
  void account(const Sent& sent) { EXPECT_EQ(under_way.erase(sent.id), 1u) << "a send ended twice"; }
  void account(const SendFailed& failed) { EXPECT_EQ(under_way.erase(failed.id), 1u) << "a send ended twice"; }
  void account(const Message& message) {
    if (!message.payload.empty()) {
      EXPECT_EQ(receiver.claimed.erase(message.token), 1u);
    }
    if (on_message) on_message(message);
  }
  void account(const ReceiveFailed& failed) { EXPECT_EQ(receiver.claimed.erase(failed.token), 1u); }
  void account(const Connected&) {}
  void account(const Gone&) {}

  std::vector<std::byte> memory_;
  std::unique_ptr<Slab> slab_;
};

// A node whose transport reads a real clock.
struct SteadyNode : TestNode {
  // Stops the transport before its clock goes: members of this class are destroyed before the base
  // class.
  ~SteadyNode() { stop(); }
  std::uint64_t later() const { return clock.now_us() + 20 * kSecondUs; }
  SteadyClock clock;
};

}  // namespace vmem::rdma
