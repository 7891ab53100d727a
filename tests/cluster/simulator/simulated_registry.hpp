// A registry across a bad network: requests and replies are delayed, overtake each other and get
// lost, requests are carried out after their client has given up, and the registry goes away for a
// time, for one client or for all.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "campaign/drifting_clock.hpp"
#include "cluster/registry/registry_state.hpp"
#include "cluster/simulator/event_queue.hpp"

namespace vmem::cluster::simulator {

struct RegistryFaults {
  // Of a thousand each.
  std::uint32_t requests_lost = 0, replies_lost = 0, requests_late = 0, replies_late = 0;
  bool away = false;               // no request arrives
  std::uint32_t refused_away = 0;  // while away: of a thousand, an error at once
  std::uint64_t usual_us = 2'000;  // most, one way
  std::uint64_t late_us = 20'000'000;
};

class SimulatedRegistry {
 public:
  SimulatedRegistry(EventQueue& queue, std::int64_t drift_ppm)
      : queue_(queue), clock_(queue, drift_ppm), state_(clock_) {}

  RegistryFaults faults;  // for all clients
  EventQueue& queue() noexcept { return queue_; }
  RegistryState& state() noexcept { return state_; }
  // Now, without faults.
  Reply apply(const RegistryRequest& request) { return state_.apply(RequestId{}, request); }
  // As of now, by key.
  const std::map<std::string, Record>& records();

 private:
  EventQueue& queue_;
  test::DriftingClock clock_;
  RegistryState state_;
  Revision read_{};
  std::map<std::string, Record> records_;
};

// One client. Requests that it has posted go on after its end.
class RegistryLink final : public Registry {
 public:
  // `wake` is called when poll() has something.
  RegistryLink(SimulatedRegistry& registry, std::uint64_t seed, std::uint64_t timeout_us, std::function<void()> wake);
  ~RegistryLink() override { client_->alive = false; }
  RegistryLink(const RegistryLink&) = delete;
  RegistryLink& operator=(const RegistryLink&) = delete;

  RequestId post(RegistryRequest request) override;
  void poll(std::vector<Reply>& replies) override;

  bool away = false;  // for this client

 private:
  struct Client {
    bool alive = true;
    std::function<void()> wake;
    std::set<RequestId> waiting;
    std::vector<Reply> replies;
    void deliver(Reply reply);
  };
  bool chance(std::uint32_t of_a_thousand) { return random_() % 1000 < of_a_thousand; }
  void fail_after(std::uint64_t wait_us, RequestId id, vmem_status status, std::string why);
  void carry(RequestId id, RegistryRequest request);
  std::uint64_t delay_us(std::uint32_t late, std::uint64_t late_us);

  SimulatedRegistry& registry_;
  std::mt19937_64 random_;
  const std::uint64_t timeout_us_;
  std::uint64_t last_id_ = 0;
  std::shared_ptr<Client> client_;
};

}  // namespace vmem::cluster::simulator
