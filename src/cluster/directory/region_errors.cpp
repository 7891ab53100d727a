#include "cluster/directory/region_errors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/sizes.hpp"

namespace vmem::cluster::directory {
namespace {

std::uint64_t number(NodeId id) { return static_cast<std::uint64_t>(id); }

bool has_other_daemons(const NodesView& view, NodeId publisher) {
  return std::ranges::any_of(
      view.nodes, [&](const KnownNode& node) { return node.id != publisher && (node.daemon || node.without_copies); });
}

}  // namespace

Error not_a_member() {
  return {VMEM_ERROR_NOT_INITIALIZED, 0,
          "this node is no member of the cluster at present; try again once it has enrolled"};
}

Error not_open(Serial serial, std::string_view what) {
  return {VMEM_ERROR_INVALID_VALUE, 0,
          fmt::format("region {} is not open on this node{}", static_cast<std::uint64_t>(serial), what)};
}

std::string home_of(const RegionRecord& region) {
  return fmt::format("its home, node {} (term {}),", number(region.home), static_cast<std::uint64_t>(region.term));
}

Error refused(const RegionRecord& region, const std::string& tenant, Refusal why) {
  const std::string name = fmt::format("region '{}'", region.name);
  if (why == Refusal::removed) return {VMEM_ERROR_LOST, 0, name + " is removed: publish it again"};
  if (why == Refusal::full)
    return {VMEM_ERROR_IN_USE, 0,
            fmt::format("{} is open on {} nodes, as many as are possible: close it on one of them", name,
                        kMostParticipants)};
  return {
      VMEM_ERROR_INVALID_OPTION, 0,
      fmt::format("{} may be opened by nodes of the tenant '{}'{}, and this one proves to be of '{}': use a secret or "
                  "certificate of one that may, or have it published with this one among its readers",
                  name, region.tenant,
                  region.readers.empty() ? "" : fmt::format(" and of {}", fmt::join(region.readers, ", ")), tenant)};
}

Error unopened(const RegionRecord& region, const std::optional<NoPath>& trouble, bool is_refused) {
  if (is_refused)
    return {VMEM_ERROR_INVALID_OPTION, 0,
            fmt::format("region '{}' could not be opened: {} refuses the connection: {}", region.name, home_of(region),
                        trouble->why)};
  return {
      VMEM_ERROR_TIMEOUT, 0,
      fmt::format("region '{}' could not be opened in time: {} did not answer{}; try again once it does, or another "
                  "node has taken over",
                  region.name, home_of(region), trouble ? fmt::format(" ({})", trouble->why) : "")};
}

Error left_behind(const RegionRecord& region, const Runs& kept) {
  return {VMEM_ERROR_LOST, 0,
          fmt::format("region '{}' is closed, and this node was removed from the cluster before other nodes had taken "
                      "over what it kept: what no other node has of its {} is lost; publish it again",
                      region.name, words_of(kept))};
}

Error closed(const RegionRecord& region) {
  return {VMEM_ERROR_LOST, 0, fmt::format("region '{}' was closed before all pages were answered", region.name)};
}

Error late(const RegionRecord& region, NodeId self, std::uint64_t page) {
  return {VMEM_ERROR_TIMEOUT, 0,
          fmt::format("page {} of region '{}' was asked for, and {} did not tell node {} in time who has it; try "
                      "again: another node takes a dead one's place when its lease ends",
                      page, region.name, home_of(region), number(self))};
}

std::string why_too_few(const RegionRecord& record, const NodesView& view, std::string trouble, bool impossible) {
  constexpr const char* kStart = "start a daemon with `vmem daemon --copies SIZE`";
  if (!has_other_daemons(view, record.publisher)) return fmt::format("the cluster has no other daemon; {}", kStart);
  if (impossible)
    return fmt::format("no daemon of the cluster takes copies of pages of {}; {}", format_bytes(record.page_bytes),
                       kStart);
  return trouble.empty() ? "the time was too short" : fmt::format("{}; {}", trouble, kStart);
}

Error too_few_copies(const RegionRecord& record, std::uint32_t fewest, std::uint32_t lacking, std::string_view why) {
  return {VMEM_ERROR_TIMEOUT, 0,
          fmt::format("region '{}' is published, but {} of {} pages have fewer copies on daemons than the {} that {} "
                      "asked for (the fewest: {}): {}. The home, node {}, goes on to make them",
                      record.name, lacking, record.pages, record.copies, record.copies == 1 ? "was" : "were", fewest,
                      why, number(record.home))};
}

}  // namespace vmem::cluster::directory
