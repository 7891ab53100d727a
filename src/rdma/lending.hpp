// What a node that lends room for pages and a node that borrows it say to each other: the bodies of messages (wire.hpp).
//
//   borrower                                lender
//   allocate: Ask                     →            room in memory and on disks
//                                     ←     allocated: Lent      a lease, for as long as both know it
//                                     ←     allocated: Lent      unasked (kUnasked): less of the same lease is on disks now
//   put: PageAt, the page             →            verified, then held
//                                     ←     put_done: Reply
//   fetch: PageAt                     →            sent; verified before if it arrived wrong the last time
//                                     ←     fetched: Reply, the page
//   release: PageAt                   →            without a reply; version 0: the whole lease, answered by released: Reply
//   ping                              →     ←      pong
//   end: End                          →            what that node borrowed is free: its process was seen to end
//                                     ←     ended
//
// Where in its lease a page lies, the borrower decides, so nothing has to be asked for before a page is sent. A request that names
// another lease than the connection's is none of this lender's: it was sent to another one, or to an earlier life of this one. Of
// requests about the same place the one with the larger sequence counts, in whatever order they come.
#pragma once

#include <cstring>
#include <optional>

#include "rdma/wire.hpp"
#include "tiers/seal.hpp"

namespace vmem::rdma::wire {

// Offsets in a lease from here on are on the lender's disks, the others in its memory. All are multiples of the granule.
inline constexpr std::uint64_t kDiskOffset = std::uint64_t{1} << 48;

enum class Answer : std::uint32_t {
  done = 0,
  again = 1,    // not now: something else is under way there
  full = 2,     // no room
  unknown = 3,  // no such page there
  damaged = 4,  // what came, or what lay there, is not that page
  failed = 5,   // the lender's disk failed, or it lacked memory; a page that it has, it keeps
  refused = 6,  // out of order, or outside of the lease
};
std::string_view answer_words(Answer answer) noexcept;

struct Ask {
  std::uint64_t memory_bytes = 0, disk_bytes = 0;  // at most
};
struct Lent {
  std::uint64_t lease = 0;  // the same as before: what was stored is still there
  std::uint64_t memory_bytes = 0, disk_bytes = 0;
  Answer answer = Answer::done;
  std::uint32_t nodes = 0;  // that have leases
  // Where nothing is left: of how much is what is lent, how much of it one node has, and for how long it will be waited
  // for. 0: that node is connected.
  std::uint64_t lendable_bytes = 0, leased_bytes = 0, holder = 0, holder_bytes = 0, holder_left_us = 0;
};
struct End {
  std::uint64_t node = 0, incarnation = 0;
};

// A page, its version, and what its bytes must give: tiers::seal.
struct SealedPage {
  std::uint32_t home = 0, granule = 0;
  std::uint64_t version = 0, bytes = 0, tenant = 0;
  std::uint64_t low = 0, high = 0;
  friend bool operator==(const SealedPage&, const SealedPage&) = default;

  tiers::PageIdentity identity() const { return {{home, granule}, version, bytes, tenant}; }
  tiers::Checksum checksum() const { return {low, high}; }
  bool matches(ConstBytes page) const { return page.size() == bytes && tiers::seal(page, identity()) == checksum(); }
};
struct PageAt {
  std::uint64_t lease = 0, offset = 0;
  SealedPage page;
  std::uint32_t doubted = 0;  // 1: what the lender sent was not this page
  std::uint32_t reserved = 0;
};
struct Reply {
  Answer answer = Answer::done;
  std::uint32_t reserved = 0;
  std::uint64_t lease = 0, offset = 0;
};
static_assert(sizeof(Ask) == 16 && sizeof(Lent) == 72 && sizeof(End) == 16 && sizeof(SealedPage) == 48 &&
              sizeof(PageAt) == 72 && sizeof(Reply) == 24);
static_assert(sizeof(PageAt) <= kMostBodyBytes);

template <class T>
ConstBytes body_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <class T>
std::optional<T> read_body(ConstBytes body) {
  if (body.size() != sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, body.data(), sizeof(T));
  return value;
}

}  // namespace vmem::rdma::wire
