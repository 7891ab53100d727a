// What all nodes of a cluster have in common, and the record "params" that says it. The first node
// writes the record; every other one compares. Nobody changes it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.hpp"

namespace vmem::cluster {

inline constexpr std::string_view kParametersKey = "params";

struct ClusterParameters {
  std::uint64_t base = 0;  // the address where the address space of the cluster begins
  std::uint64_t space_bytes = 0;
  std::uint64_t slice_bytes = std::uint64_t{64} << 30;
  std::uint64_t granule_bytes = 0;
  std::string page_rule;  // how page sizes follow from the sizes of regions

  std::uint32_t slices() const noexcept;  // whole ones
  bool operator==(const ClusterParameters&) const = default;
};

std::string json_of(const ClusterParameters& parameters);
// Errors: INVALID_OPTION, naming the field.
Result<ClusterParameters> parse_parameters(std::string_view value);
// Whether a node with these may take part. Errors: INVALID_OPTION, with the value that the node
// has, the one that the cluster has, and the option to change.
Status compare(const ClusterParameters& node, const ClusterParameters& cluster);

}  // namespace vmem::cluster
