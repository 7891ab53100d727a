#include "topology/paths.hpp"

#include <algorithm>
#include <limits>
#include <queue>

namespace vmem::topology {
namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

NodeIndex end_of(const Topology& topology, Step step) {
  const Link& link = topology.links[step.link];
  return step.forward ? link.b : link.a;
}

double width_of(const Topology& topology, Step step) { return step_rate(topology, step).value_or(kUnlimited); }

class Search {
 public:
  enum class Links { all, nvlink };
  Search(const Topology& topology, NodeIndex from, NodeIndex to, Links links)
      : topology_(topology), from_(from), to_(to), steps_(topology.nodes.size()) {
    for (std::uint32_t i = 0; i < topology.links.size(); ++i) {
      if (links == Links::nvlink && topology.links[i].kind != LinkKind::nvlink) continue;
      steps_[topology.links[i].a.value].push_back({i, true});
      steps_[topology.links[i].b.value].push_back({i, false});
    }
  }

  // Width of the widest path, which is that of its narrowest step; 0: no path.
  double width() const {
    std::vector<double> widest(steps_.size(), 0);
    std::priority_queue<std::pair<double, std::uint32_t>> open;
    widest[from_.value] = kUnlimited;
    open.emplace(kUnlimited, from_.value);
    while (!open.empty()) {
      const auto [width, node] = open.top();
      open.pop();
      if (width < widest[node] || !leads_on({node})) continue;
      for (const Step step : steps_[node]) {
        const double reached = std::min(width, width_of(topology_, step));
        const std::uint32_t next = end_of(topology_, step).value;
        if (reached <= widest[next]) continue;
        widest[next] = reached;
        open.emplace(reached, next);
      }
    }
    return widest[to_.value];
  }

  // The path with the fewest steps that are all at least `width` wide. REQUIRES: one exists.
  std::vector<Step> shortest(double width) const {
    std::vector<std::optional<Step>> came_by(steps_.size());
    std::queue<NodeIndex> open;
    open.push(from_);
    while (!open.empty() && !came_by[to_.value]) {
      const NodeIndex node = open.front();
      open.pop();
      if (!leads_on(node)) continue;
      for (const Step step : steps_[node.value]) {
        const NodeIndex next = end_of(topology_, step);
        if (next == from_ || came_by[next.value] || width_of(topology_, step) < width) continue;
        came_by[next.value] = step;
        open.push(next);
      }
    }
    std::vector<Step> steps;
    for (NodeIndex node = to_; node != from_; node = end_of(topology_, {steps.back().link, !steps.back().forward}))
      steps.push_back(*came_by[node.value]);
    std::ranges::reverse(steps);
    return steps;
  }

 private:
  bool leads_on(NodeIndex node) const { return node == from_ || !is_memory(topology_[node].kind); }

  const Topology& topology_;
  const NodeIndex from_, to_;
  std::vector<std::vector<Step>> steps_;  // by node
};

}  // namespace

std::optional<double> step_rate(const Topology& topology, Step step) {
  const Link& link = topology.links[step.link];
  const Rate& one_way = step.forward ? link.forward : link.backward;
  double rate = kUnlimited;
  if (one_way.known()) rate = one_way.bytes_per_s;
  if (link.both.known()) rate = std::min(rate, link.both.bytes_per_s);
  if (rate == kUnlimited) return std::nullopt;
  return rate;
}

std::optional<double> path_rate(const Topology& topology, const Path& path) {
  double rate = kUnlimited;
  for (const Step step : path.steps) rate = std::min(rate, step_rate(topology, step).value_or(kUnlimited));
  if (const Copy* copy = topology.copy(path.from, path.to); copy != nullptr && copy->rate.known())
    rate = std::min(rate, copy->rate.bytes_per_s);
  if (rate == kUnlimited) return std::nullopt;
  return rate;
}

std::optional<Path> best_path(const Topology& topology, NodeIndex from, NodeIndex to) {
  if (from == to) return Path{from, to, {}};
  for (const auto links : {Search::Links::nvlink, Search::Links::all}) {
    const Search search(topology, from, to, links);
    if (const double width = search.width(); width > 0) return Path{from, to, search.shortest(width)};
  }
  return std::nullopt;
}

}  // namespace vmem::topology
