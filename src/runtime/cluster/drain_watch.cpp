#include "runtime/cluster/drain_watch.hpp"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "base/sizes.hpp"
#include "runtime/cluster/node_drain.hpp"

namespace vmem::runtime {

namespace {

std::string mapped_words(const cluster::Holdings& holds) {
  return fmt::format(
      "programs of its host map {} of its GPU's memory, process {} most of them. Their pages go to their own host "
      "memory: that process does not run, uses these pages without an end, or what is below its host memory is full",
      format_bytes(holds.hbm_mapped), holds.hbm_mapper);
}

// Homes make the copies elsewhere.
std::string copies_words(const std::vector<ClusterNode>& nodes, const std::vector<ListedRegion>& regions,
                         const ClusterNode& node, std::uint64_t room) {
  const bool forced = node.drain && node.drain->force;
  const std::string_view remedy = forced ? "start another daemon with --copies"
                                         : "start another daemon with --copies, or drain the node anew with --force "
                                           "to have fewer copies";
  if (const auto lacks = copies_without_room(nodes, regions, node, forced))
    return fmt::format("{}: {}", lacks->words(), remedy);
  if (node.holds->copies > room)
    return fmt::format("the other nodes have room for {} of copies: {}", format_bytes(room), remedy);
  for (const ListedRegion& region : regions)
    if (region.record.place_of(node.id) && !region.home_is_member)
      return fmt::format("the home of the published region '{}' is gone; another node takes over within seconds",
                         region.record.name);
  return "the daemons with room have copies of the same pages, or a home of the published regions that it has copies "
         "of does not answer: start another daemon with --copies, or see `vmem region list`";
}

}  // namespace

std::string standstill(const std::vector<ClusterNode>& nodes, const std::vector<ListedRegion>& regions,
                       const ClusterNode& node) {
  if (!node.holds || !node.holds->drains)
    return "its daemon has not said that it knows of the order: it does not run, or does not reach the registry";
  const auto [pages, copies] = room_elsewhere(nodes, node.id);
  if (node.holds->stored() > pages)
    return fmt::format("the other nodes have room for {} of pages: start another daemon", format_bytes(pages));
  if (node.holds->stored() != 0)
    return "the other nodes have room; a program with pages there does not run, uses these pages without an end, "
           "names the daemon by --remote, or its own leases are full elsewhere";
  if (node.holds->hbm_mapped != 0) return mapped_words(*node.holds);
  if (node.holds->copies != 0) return copies_words(nodes, regions, node, copies);
  return "a program that has no page there keeps its lease: it does not run, or names the daemon by --remote";
}

std::string limit_standstill(const ClusterNode& node) {
  if (!node.holds) return standstill({}, {}, node);
  const cluster::HbmParts parts = cluster::hbm_parts(node.record.lends.hbm, node.record.mapped.bytes, node.hbm_limit);
  if (node.holds->hbm_mapped > parts.mapped) return mapped_words(*node.holds);
  if (node.holds->stored_hbm() <= parts.stored)
    return fmt::format(
        "it holds {} of pages, which would fit, and has not given the rest back: its daemon has not heard of the "
        "limit, or its GPU has failed; see the daemon's log",
        format_bytes(node.holds->stored_hbm()));
  return fmt::format(
      "it still holds {} of pages. The programs that own them move them to this daemon's memory, or to other "
      "nodes: one of these programs does not run, uses its pages without an end, or its leases are full",
      format_bytes(node.holds->stored_hbm()));
}

std::vector<std::string> DrainWatch::saw(const std::string& words, const std::string& why, std::uint64_t now_us) {
  std::vector<std::string> lines;
  if (std::exchange(away_, false)) {
    since_us_ = now_us;
    lines.emplace_back("is seen again: the registry answers");
  }
  if (words != words_) {
    words_ = words;
    reason_.clear();
    since_us_ = now_us;
    lines.push_back(words);
  }
  if (why.empty() || why == reason_ || now_us - since_us_ < kStillUs) return lines;
  reason_ = why;
  lines.push_back(fmt::format("stands still for {} s: {}", (now_us - since_us_) / 1'000'000, reason_));
  return lines;
}

std::vector<std::string> DrainWatch::saw(const Error& away) {
  if (std::exchange(away_, true)) return {};
  return {fmt::format("is not seen, as the registry does not answer; what was ordered goes on without it: {}",
                      away.message)};
}

}  // namespace vmem::runtime
