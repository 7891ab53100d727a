// Bodies of the messages by which a page of a published region moves between nodes:
//
//   reader                          a node with a copy
//   fetch_shared: SharedPage    →
//                               ←   fetched_shared: SharedReply, the page
//
// Published pages never change, so requests may be repeated. The tag proves the page: only nodes
// that may read the region have its key (RegionKey).
#pragma once

#include <array>
#include <cstdint>

#include "rdma/lending/protocol.hpp"
#include "rdma/trust/page_aead.hpp"
#include "tiers/seal.hpp"

namespace vmem::sharing {

struct SharedPage {
  pagetable::Serial serial{};  // of the region
  std::uint64_t bytes = 0;     // of the page
  std::uint32_t page = 0;      // index in the region
  std::uint32_t reserved = 0;
  auto operator<=>(const SharedPage&) const = default;

  tiers::PageIdentity identity() const { return {{serial, page}, 1, bytes, 0}; }
};
struct SharedReply {
  rdma::wire::Answer answer = rdma::wire::Answer::done;
  std::uint32_t reserved = 0;
  rdma::PageAead::Tag tag{};
};
static_assert(sizeof(SharedPage) == 24 && sizeof(SharedReply) == 24);

std::string words(const SharedPage& page);

}  // namespace vmem::sharing
