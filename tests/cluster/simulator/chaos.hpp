// Random faults and calls in a simulated cluster: what its campaigns have in common.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <random>
#include <string>

#include "cluster/enrollment/node_record.hpp"
#include "cluster/registry/registry_state.hpp"
#include "cluster/simulator/simulated_registry.hpp"

namespace vmem::cluster::simulator {

// The same seed makes the same choices.
template <class World>
class Chaos {
 public:
  // Rounds of faults, each with its recovery.
  void play(int rounds) {
    for (int round = 0; round < rounds && world.wrong().empty(); ++round) {
      const std::uint64_t end_us = world.queue().now_us() + pace_.leases * world.lease_us();
      while (world.queue().now_us() < end_us && world.wrong().empty()) {
        act();
        world.run_for(random_() % (world.lease_us() / pace_.acts));
      }
      world.recover();
    }
  }

  World world;

 protected:
  struct Pace {
    std::uint64_t leases = 0;  // length of a round
    std::uint64_t acts = 0;    // in a lease's time, at least
  };
  template <class Shape>
  Chaos(std::uint64_t seed, std::uint64_t salt, const Shape& shape, Pace pace)
      : world(seed, shape), pace_(pace), random_(seed * 7919 + salt) {}
  virtual ~Chaos() = default;
  virtual void act() = 0;

  std::uint64_t time_us() { return random_() % (2 * world.lease_us()); }
  std::uint64_t wait_us() { return 1'000'000 + random_() % 8'000'000; }
  std::string name() { return fmt::format("n{}", random_() % 3); }

  template <class Host>
  void stop(Host& host) {
    host.stop();
    world.queue().after(time_us(), [&host] { host.go_on(); });
  }
  void break_registry() {
    world.registry().faults.away = true;
    world.queue().after(time_us(), [this] { world.registry().faults.away = false; });
  }
  // Of 1,000 requests and replies at most so many each.
  void lose_requests(std::uint64_t most) {
    const auto share = [&] { return random_() % 2 ? std::uint32_t(random_() % most) : 0u; };
    RegistryFaults& faults = world.registry().faults;
    faults = {.requests_lost = share(),
              .replies_lost = share(),
              .requests_late = share(),
              .replies_late = share(),
              .away = faults.away,
              .refused_away = share(),
              .late_us = 1 + random_() % (3 * world.lease_us())};
  }
  void drain(NodeId id) {
    const auto& records = world.registry().records();
    if (const auto node = records.find(node_key(id)); node != records.end())
      world.registry().apply(drain_commit(node->second, random_() % 2 == 0));
  }
  void publish(std::uint32_t host) {
    const std::uint64_t now_s = 1'000'000 + world.queue().now_us() / 1'000'000;
    const std::uint64_t expires_s = random_() % 8 == 0 ? now_s + random_() % 30 : 0;
    world.publish(
        host, {.name = name(), .copies = std::uint32_t(random_() % 3), .expires_s = expires_s, .wait_us = wait_us()});
  }

  const Pace pace_;
  std::mt19937_64 random_;
};

}  // namespace vmem::cluster::simulator
