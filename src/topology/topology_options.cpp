#include "topology/topology_options.hpp"

#include "base/option_parse.hpp"

namespace vmem {
namespace {

Option<TopologyOptions> topology_option() {
  return define({.name = "topology",
                 .values = "auto (the file in the user's cache folder), off, or the path of a file",
                 .help = "Where `vmem topo` keeps the machine's measured links, and placement finds them.",
                 .print = [](const TopologyOptions& options) { return options.topology; }},
                &TopologyOptions::topology, [](std::string_view text) -> Result<std::string> {
                  if (text.empty()) return fail(VMEM_ERROR_INVALID_OPTION, "a file without a name");
                  return std::string(text);
                });
}

}  // namespace

std::vector<Option<TopologyOptions>> topology_options() { return {topology_option()}; }

}  // namespace vmem
