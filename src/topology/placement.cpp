#include "topology/placement.hpp"

#include <algorithm>
#include <limits>
#include <tuple>

namespace vmem::topology {
namespace {

constexpr double kAlike = 0.95;
constexpr double kUnlimited = std::numeric_limits<double>::infinity();

std::optional<double> slower(std::optional<double> a, std::optional<double> b) {
  if (!a || !b) return std::nullopt;
  return std::min(*a, *b);
}

// The paths in both directions between a device and a memory.
struct RoundTrip {
  Path in, out;
};

std::optional<RoundTrip> round_trip(const Topology& topology, NodeIndex device, NodeIndex memory) {
  auto in = best_path(topology, memory, device);
  auto out = best_path(topology, device, memory);
  if (!in || !out) return std::nullopt;
  return RoundTrip{*std::move(in), *std::move(out)};
}

std::optional<double> rate_of(const Topology& topology, const RoundTrip& trip) {
  return slower(path_rate(topology, trip.in), path_rate(topology, trip.out));
}

bool all_nvlink(const Topology& topology, const Path& path) {
  return std::ranges::all_of(path.steps, [&](Step step) { return topology.links[step.link].kind == LinkKind::nvlink; });
}

bool meet(const Path& a, const Path& b) {
  return std::ranges::any_of(
      a.steps, [&](Step step) { return std::ranges::find(b.steps, step.link, &Step::link) != b.steps.end(); });
}

// Sorts the best first, unknown rates last. `rate` gives an optional rate; `tie` orders elements
// whose rates are alike.
template <class Element, class RateOf, class Tie>
void order(std::vector<Element>& elements, RateOf rate, Tie tie) {
  std::ranges::stable_sort(elements, std::greater<>{}, [&](const Element& e) { return rate(e).value_or(-1); });
  for (auto begin = elements.begin(); begin != elements.end();) {
    const double best = rate(*begin).value_or(-1);
    const auto end = std::find_if(begin, elements.end(), [&](const Element& e) {
      const double value = rate(e).value_or(-1);
      return best >= 0 && value < best * kAlike;
    });
    std::stable_sort(begin, end, [&](const Element& a, const Element& b) { return tie(a) < tie(b); });
    begin = end;
  }
}

int rank_of(const Topology& topology, int device, int peer) {
  return topology.peers[std::size_t(device)][std::size_t(peer)].rank;
}

bool reaches(const Topology& topology, int device, int peer) {
  const auto from = std::size_t(device), to = std::size_t(peer);
  return from < topology.peers.size() && to < topology.peers[from].size() && topology.peers[from][to].reachable;
}

struct HostCandidate {
  int number = 0;
  std::optional<double> worst;
  std::size_t distance = 0;  // links on the paths of all devices
};

std::optional<HostCandidate> consider_host(const Topology& topology, NodeIndex host, std::span<const int> devices) {
  HostCandidate candidate{topology[host].number, kUnlimited, 0};
  for (const int ordinal : devices) {
    const auto device = topology.find(NodeKind::device, ordinal);
    const auto trip = device ? round_trip(topology, *device, host) : std::nullopt;
    if (!trip) return std::nullopt;
    candidate.worst = slower(candidate.worst, rate_of(topology, *trip));
    candidate.distance += trip->in.steps.size();
  }
  return candidate;
}

int kind_order(NodeKind kind) {
  switch (kind) {
    case NodeKind::device:
      return 0;
    case NodeKind::host:
      return 1;
    case NodeKind::disk:
      return 2;
    default:
      return 3;
  }
}

}  // namespace

std::optional<double> Place::bytes_per_s() const { return slower(fetch_bytes_per_s, store_bytes_per_s); }

std::optional<int> host_node(const Topology& topology, std::span<const int> devices) {
  std::vector<HostCandidate> candidates;
  for (const NodeIndex host : topology.all(NodeKind::host))
    if (auto candidate = consider_host(topology, host, devices)) candidates.push_back(*candidate);
  if (candidates.empty()) return std::nullopt;
  const bool known = std::ranges::all_of(candidates, [](const HostCandidate& c) { return c.worst.has_value(); });
  order(
      candidates, [known](const HostCandidate& c) { return known ? c.worst : std::nullopt; },
      [](const HostCandidate& c) { return std::pair(c.distance, c.number); });
  return candidates.front().number;
}

std::vector<Peer> peers(const Topology& topology, int device) {
  std::vector<Peer> found;
  const auto own = topology.find(NodeKind::device, device);
  if (!own) return found;
  const auto node = host_node(topology, std::span(&device, 1));
  const auto host = node ? topology.find(NodeKind::host, *node) : std::nullopt;
  const auto host_path = host ? best_path(topology, *own, *host) : std::nullopt;
  for (const NodeIndex other : topology.all(NodeKind::device)) {
    const int ordinal = topology[other].number;
    if (ordinal == device || !reaches(topology, device, ordinal)) continue;
    Peer peer{.device = ordinal};
    if (const auto trip = round_trip(topology, *own, other)) {
      peer.bytes_per_s = rate_of(topology, *trip);
      peer.nvlink = all_nvlink(topology, trip->out);
      peer.shares_host_path = host_path && meet(trip->out, *host_path);
    }
    found.push_back(peer);
  }
  const int count = int(topology.all(NodeKind::device).size());
  order(
      found, [](const Peer& peer) { return peer.bytes_per_s; },
      [&](const Peer& peer) {
        return std::tuple(peer.shares_host_path, rank_of(topology, device, peer.device),
                          (peer.device - device + count) % count);
      });
  return found;
}

std::vector<int> peers_by_rate(const Topology& topology, int device) {
  std::vector<int> ordinals;
  for (const Peer& peer : peers(topology, device)) ordinals.push_back(peer.device);
  return ordinals;
}

PeerAndHost peer_and_host(const Topology& topology, int device, int peer, int host) {
  const auto rate = [&](NodeKind kind, int number) -> std::optional<double> {
    const auto from = topology.find(NodeKind::device, device), to = topology.find(kind, number);
    const auto trip = from && to ? round_trip(topology, *from, *to) : std::nullopt;
    return trip ? rate_of(topology, *trip) : std::nullopt;
  };
  return {.peer_bytes_per_s = rate(NodeKind::device, peer), .host_bytes_per_s = rate(NodeKind::host, host)};
}

bool PeerAndHost::peer_first() const {
  if (!peer_bytes_per_s || !host_bytes_per_s) return true;
  return *peer_bytes_per_s >= *host_bytes_per_s * kAlike;
}

std::vector<Place> places_by_rate(const Topology& topology, int device) {
  std::vector<Place> places;
  const auto own = topology.find(NodeKind::device, device);
  if (!own) return places;
  const auto add = [&](NodeIndex memory) {
    if (const auto trip = round_trip(topology, *own, memory))
      places.push_back({memory, path_rate(topology, trip->in), path_rate(topology, trip->out)});
  };
  // In order of kind, with peers in their own order: this order breaks ties.
  for (const int peer : peers_by_rate(topology, device)) add(*topology.find(NodeKind::device, peer));
  for (const NodeKind kind : {NodeKind::host, NodeKind::disk, NodeKind::fabric})
    for (const NodeIndex memory : topology.all(kind)) add(memory);
  const auto rate = [](const Place& place) { return place.bytes_per_s(); };
  const bool known = std::ranges::all_of(places, [&](const Place& place) { return rate(place).has_value(); });
  const auto kind = [&](const Place& place) { return kind_order(topology[place.memory].kind); };
  order(places, rate, kind);
  if (!known) std::ranges::stable_sort(places, {}, kind);
  const auto own_rate = path_rate(topology, {*own, *own, {}});
  places.insert(places.begin(), Place{*own, own_rate, own_rate});
  return places;
}

}  // namespace vmem::topology
