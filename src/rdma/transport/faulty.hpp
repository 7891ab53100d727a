// A Transport over another one that injects faults. Seeded: the same calls meet the same faults.
// A fault happens to the bytes in flight; the sender is not told, as on a real network.
#pragma once

#include <map>
#include <mutex>
#include <random>
#include <set>

#include "base/clock.hpp"
#include "rdma/transport/event_queue.hpp"
#include "rdma/transport/transport.hpp"

namespace vmem::rdma {

// Probability of each fault per message, from 0 to 1.
struct Faults {
  double drop = 0;
  double duplicate = 0;
  double delay = 0;
  double corrupt_header = 0;   // one bit
  double corrupt_payload = 0;  // one bit
  double misdirect = 0;        // to another connected peer, if any
  double cut_out = 0;          // silences the connection from here on: see Way
  double cut_in = 0;
  std::uint64_t delay_us = 1000;
};
struct FaultCounts {
  std::uint64_t dropped = 0, duplicated = 0, delayed = 0, headers_corrupted = 0, payloads_corrupted = 0,
                misdirected = 0, cut = 0;
};
enum class Way : std::uint8_t { both, out, in };  // of a connection: out to the peer, in from it

class FaultyTransport final : public Transport {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, const Clock& clock, std::uint64_t seed, Faults faults = {});
  ~FaultyTransport() override;

  void set_faults(Faults faults);
  FaultCounts counts() const;
  // From now on nothing passes this way over the connection. Sends that do not pass fail when a
  // deadline passes, and the peer with them.
  void silence(PeerId peer, Way way = Way::both);

  const std::string& address() const noexcept override { return inner_->address(); }
  Result<std::unique_ptr<Slab>> register_slab(Bytes memory) override { return inner_->register_slab(memory); }
  bool sends_gpu_memory() const noexcept override { return inner_->sends_gpu_memory(); }
  Result<std::unique_ptr<Slab>> register_gpu_slab(Bytes memory) override { return inner_->register_gpu_slab(memory); }
  Result<PeerId> connect(const std::string& address, std::uint64_t deadline_us) override {
    return inner_->connect(address, deadline_us);
  }
  Status send(std::span<Send> sends) override;
  void close(PeerId peer) override { inner_->close(peer); }
  void poll(std::vector<Event>& events) override { events_.take(events); }
  bool wait(std::uint64_t most_us) override { return events_.wait(most_us); }
  bool progress() override;
  void idle(std::uint64_t most_us) override;
  void wake() noexcept override { inner_->wake(); }

 private:
  struct Outgoing {
    SendId id{};  // the caller's id
    PeerId peer{};
    std::vector<std::byte> header;
    std::vector<ConstBytes> payload;
    std::uint64_t deadline_us = 0;
    std::vector<std::byte> spoilt;  // a corrupted copy of the payload, if any
    std::unique_ptr<Slab> spoilt_slab;
  };
  struct UnderWay {
    std::shared_ptr<Outgoing> message;
    std::size_t copies = 0;  // sends in flight in inner_
    std::optional<SendFailed> failed;
  };

  bool happens(double probability);
  void cut(PeerId peer);
  Status meet_accidents(std::shared_ptr<Outgoing> message);
  Status corrupt(Outgoing& message);
  void misdirect(Outgoing& message);
  Status pass_on(const std::shared_ptr<Outgoing>& message, int copies);
  bool release_delayed();
  bool expire_silent();
  bool translate();
  void translate(Event event);
  void end_copy(SendId inner, std::optional<SendFailed> failed);
  void fail_kept(PeerId peer, const Gone& gone);

  const std::unique_ptr<Transport> inner_;
  const Clock& clock_;
  EventQueue events_;
  mutable std::mutex mutex_;
  // Protected by mutex_.
  Faults faults_;
  FaultCounts counts_;
  std::mt19937_64 random_;
  std::uint64_t last_send_ = 0;
  std::map<SendId, SendId> outer_of_;                                // by inner_'s id
  std::map<SendId, UnderWay> under_way_;                             // by the caller's id
  std::multimap<std::uint64_t, std::shared_ptr<Outgoing>> delayed_;  // by release time
  std::vector<std::shared_ptr<Outgoing>> silenced_;
  std::set<PeerId> connected_, timed_out_, gone_;
  std::set<PeerId> deaf_, mute_;  // nothing passes to them, from them
};

}  // namespace vmem::rdma
