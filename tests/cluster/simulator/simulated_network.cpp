#include "cluster/simulator/simulated_network.hpp"

#include <algorithm>

namespace vmem::cluster::simulator {

void SimulatedNetwork::carry(Address from, Address to, const std::string& message) {
  Link& link = state(from, to);
  const LinkQuality& quality = link.quality;
  std::uint64_t arrival_us = queue_.now_us() + quality.least_us + random_() % (quality.most_us - quality.least_us + 1);
  if (quality.ordered) arrival_us = std::max(arrival_us, link.last_arrival_us);
  link.last_arrival_us = std::max(arrival_us, link.last_arrival_us);
  queue_.at(arrival_us, [this, from, to, message] {
    const auto receiver = receivers_.find(to);
    if (state(from, to).quality.cut || receiver == receivers_.end()) return;
    const Receive receive = receiver->second;  // it may detach itself
    receive(from, message);
  });
}

void SimulatedNetwork::send(Address from, Address to, std::string message) {
  const LinkQuality& quality = state(from, to).quality;
  if (quality.cut || chance(quality.lost)) return;
  if (chance(quality.doubled)) carry(from, to, message);
  carry(from, to, message);
}

}  // namespace vmem::cluster::simulator
