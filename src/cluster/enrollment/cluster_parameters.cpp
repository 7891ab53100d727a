#include "cluster/enrollment/cluster_parameters.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/sizes.hpp"
#include "cluster/enrollment/json_fields.hpp"

namespace vmem::cluster {
namespace {

constexpr std::uint64_t kMostSlices = 1 << 20;

Status differ(std::string_view what, const std::string& node, const std::string& cluster, std::string_view remedy) {
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("this node's {} is {}, and the cluster's is {}: {}, or join another cluster", what, node,
                          cluster, remedy));
}

Status compare_bytes(std::string_view what, std::uint64_t node, std::uint64_t cluster, std::string_view remedy) {
  if (node == cluster) return {};
  return differ(what, exact_bytes(node), exact_bytes(cluster), remedy);
}

Status check(const ClusterParameters& parameters) {
  if (parameters.slice_bytes != 0 && parameters.space_bytes / parameters.slice_bytes <= kMostSlices) return {};
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("the registry's record '{}' contradicts itself: slices of {} in a space of {}",
                          kParametersKey, exact_bytes(parameters.slice_bytes), exact_bytes(parameters.space_bytes)));
}

}  // namespace

std::uint32_t ClusterParameters::slices() const noexcept {
  if (slice_bytes == 0) return 0;
  return static_cast<std::uint32_t>(std::min(space_bytes / slice_bytes, kMostSlices));
}

std::string json_of(const ClusterParameters& parameters) {
  return record_value({{"base", parameters.base},
                       {"space_bytes", parameters.space_bytes},
                       {"slice_bytes", parameters.slice_bytes},
                       {"granule_bytes", parameters.granule_bytes},
                       {"page_rule", parameters.page_rule}});
}

Result<ClusterParameters> parse_parameters(std::string_view value) {
  JsonFields fields(kParametersKey, value);
  ClusterParameters parameters{.base = fields.number("base"),
                               .space_bytes = fields.number("space_bytes"),
                               .slice_bytes = fields.number("slice_bytes"),
                               .granule_bytes = fields.number("granule_bytes"),
                               .page_rule = fields.text("page_rule")};
  VMEM_TRY(fields.done());
  VMEM_TRY(check(parameters));
  return parameters;
}

Status compare(const ClusterParameters& node, const ClusterParameters& cluster) {
  if (node.base != cluster.base)
    return differ("base address", fmt::format("{:#x}", node.base), fmt::format("{:#x}", cluster.base),
                  "set the option base to the cluster's");
  VMEM_TRY(
      compare_bytes("address space", node.space_bytes, cluster.space_bytes, "set the option space to the cluster's"));
  VMEM_TRY(
      compare_bytes("slice size", node.slice_bytes, cluster.slice_bytes, "install the cluster's vmem on this node"));
  VMEM_TRY(compare_bytes("granule size", node.granule_bytes, cluster.granule_bytes,
                         "install the cluster's vmem on this node"));
  if (node.page_rule != cluster.page_rule)
    return differ("rule for page sizes", fmt::format("'{}'", node.page_rule), fmt::format("'{}'", cluster.page_rule),
                  "install the cluster's vmem on this node");
  return {};
}

}  // namespace vmem::cluster
