// Messages between nodes. Each direction of each pair has its own delays, losses, copies and cuts;
// messages overtake each other unless the link keeps their order.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "cluster/simulator/event_queue.hpp"

namespace vmem::cluster::simulator {

using Address = std::uint32_t;

struct LinkQuality {
  std::uint64_t least_us = 10, most_us = 100;  // delay
  std::uint32_t lost = 0, doubled = 0;         // of a thousand
  bool cut = false;                            // what is sent, and what is in flight, is lost
  bool ordered = false;
};

class SimulatedNetwork {
 public:
  using Receive = std::function<void(Address from, const std::string& message)>;

  SimulatedNetwork(EventQueue& queue, std::uint64_t seed) : queue_(queue), random_(seed) {}

  // Messages go to whoever is attached to the address when they arrive.
  void attach(Address address, Receive receive) { receivers_[address] = std::move(receive); }
  void detach(Address address) { receivers_.erase(address); }
  void send(Address from, Address to, std::string message);
  // From the one to the other, not back. One that was not set is usual().
  LinkQuality& link(Address from, Address to) { return state(from, to).quality; }
  LinkQuality& usual() noexcept { return usual_; }

 private:
  struct Link {
    LinkQuality quality;
    std::uint64_t last_arrival_us = 0;
  };
  Link& state(Address from, Address to) { return links_.try_emplace({from, to}, Link{usual_, 0}).first->second; }
  void carry(Address from, Address to, const std::string& message);
  bool chance(std::uint32_t of_a_thousand) { return random_() % 1000 < of_a_thousand; }

  EventQueue& queue_;
  std::mt19937_64 random_;
  LinkQuality usual_;
  std::map<std::pair<Address, Address>, Link> links_;
  std::map<Address, Receive> receivers_;
};

}  // namespace vmem::cluster::simulator
