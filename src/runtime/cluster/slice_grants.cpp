#include "runtime/cluster/slice_grants.hpp"

namespace vmem::runtime {

Status grant_slices(const SliceGrants& grants, std::uint32_t count) {
  VMEM_ASSIGN(const std::vector<cluster::Slice> slices, grants.take(count));
  bool lost = false;
  for (const cluster::Slice slice : slices) {
    const std::uint32_t first = static_cast<std::uint32_t>(slice) * grants.granules;
    VMEM_TRY(grants.grant(first, grants.granules));
    if (grants.holds(slice)) continue;
    grants.retire(first, grants.granules);
    lost = true;
  }
  if (!lost) return {};
  return fail(VMEM_ERROR_ADDRESS_SPACE,
              "this node was removed from the cluster while it took addresses, which other nodes may use now; try "
              "again once it has enrolled anew");
}

}  // namespace vmem::runtime
