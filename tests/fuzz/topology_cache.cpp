// The file of measured links, and placement on an accepted topology.
#include "topology/cache.hpp"

#include "fuzz/memory_file.hpp"
#include "topology/placement.hpp"

namespace vmem::topology {
namespace {

using fuzz::MemoryFile;
using fuzz::require;

// The key of the files in the corpus.
const MachineKey kKey{"machine", "driver", {"device"}};
// Number of nodes: placement searches paths between all of them.
constexpr std::size_t kMostPlaced = 16;

void place(const Topology& topology) {
  if (topology.nodes.size() > kMostPlaced || topology.links.size() > 4 * kMostPlaced) return;
  for (const NodeIndex device : topology.all(NodeKind::device)) {
    const int ordinal = topology[device].number;
    for (const Place& place : places_by_rate(topology, ordinal))
      require(place.memory.value < topology.nodes.size(), "a place is a node");
    (void)host_node(topology, std::span(&ordinal, 1));
  }
}

}  // namespace
}  // namespace vmem::topology

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace vmem::topology;
  const MemoryFile file(vmem::fuzz::Input(data, size).text());
  const auto loaded = load_saved(file.path(), kKey);
  if (!loaded) {
    require(!loaded.error().message.empty(), "a refusal says why");
    return 0;
  }
  const MemoryFile saved(to_json(*loaded));
  const auto again = load_saved(saved.path(), kKey);
  require(again && again->topology == loaded->topology && again->measured_at == loaded->measured_at,
          "what was loaded is saved the same");
  place(loaded->topology);
  return 0;
}
