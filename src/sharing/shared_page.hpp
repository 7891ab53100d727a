// Bodies of the messages by which a page of a published region moves between nodes:
//
//   reader                          a node with a copy
//   fetch_shared: SharedRequest →
//                               ←   fetched_shared: SharedReply, the page
//
// Published pages never change, so requests may be repeated. The tag proves the page: only nodes
// that may read the region have its key (RegionKey).
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

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
// `known`: begins the tag that the reader's bytes of an earlier version have as this page. 0: none.
// A source whose page has that tag answers `same`, with the tag and without the page.
struct SharedRequest {
  SharedPage page;
  std::uint64_t known = 0;
};
struct SharedReply {
  rdma::wire::Answer answer = rdma::wire::Answer::done;
  std::uint32_t reserved = 0;
  rdma::PageAead::Tag tag{};
};
static_assert(sizeof(SharedPage) == 24 && sizeof(SharedRequest) == 32 && sizeof(SharedReply) == 24);

// What a request says of a tag. The whole tag is the source's to say: who does not have the page
// cannot claim that the reader's bytes are the same.
inline std::uint64_t known_part(const rdma::PageAead::Tag& tag) {
  std::uint64_t known = 0;
  std::memcpy(&known, tag.data(), sizeof(known));
  return known;
}

std::string words(const SharedPage& page);

}  // namespace vmem::sharing
