// How much each lender is to lend to a program that needs a certain amount in all. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rdma/lending/remote_tier/copy_placer.hpp"

namespace vmem::rdma {

// What is leased beyond the need: pages of several sizes leave gaps, and growth takes a round trip.
std::uint64_t with_slack(std::uint64_t need_bytes);

// For each lender, what its lease is to have of each medium so that `bytes` of pages with so many
// copies fit. The media of the lowest level come first, with equal shares of those of one level;
// with two copies, equal shares of the nodes. The shares are rounded up to steps: a thirty-second
// of what there is, at most 256 MiB.
std::vector<wire::MediumBytes> lease_sizes(std::span<const CopyPlacer::Lendable> lenders, std::uint64_t bytes,
                                           std::uint32_t replicas);

// Whether a lease has so much more of a medium than it is to have that some is to be returned. More
// than it takes to grow: else sizes would flap.
bool is_surplus(std::uint64_t usable, std::uint64_t wanted);

}  // namespace vmem::rdma
