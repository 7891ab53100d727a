// How long one page takes to come from a node, alone and while another borrower loads from there.
#pragma once

#include "bench/context.hpp"
#include "runtime/options/options.hpp"

namespace vmem::bench {

// Memory that a node has to lend for it.
std::uint64_t net_beside_bytes();
// Adds one record. `options` name one node, which lends net_beside_bytes() at least.
Status measure_net_beside(Context& context, const Options& options);

}  // namespace vmem::bench
