// The messages by which a borrower and a lender agree on a lease's size.
//
// A lease is a quota for each medium. Its memory is a set of extents of the lent memory, at most
// kMostExtents; an offset in memory is one there. Offsets on disks and in HBM count from 0 in each
// lease.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "rdma/lending/extents.hpp"
#include "rdma/lending/protocol.hpp"

namespace vmem::rdma::wire {

// From this version on leases change their size when the borrower asks. Before, the first answer
// holds, and memory is one extent, at offset 0.
inline constexpr std::uint16_t kResizableVersion = 6;
inline constexpr std::size_t kMostExtents = 10;

struct Ask {
  // What the lease is to have of each medium. If it is less than before: of disks and HBM the end
  // is returned, of memory what `returned` names. The borrower has released all pages there.
  MediumBytes bytes;
  std::vector<Extent> returned = {};  // at most kMostExtents
  // The one that the borrower has; 0: none. If it names one that the lender does not have, or none
  // and the lender has one, nothing changes, and the answer says what there is.
  std::uint64_t lease = 0;
};

struct Lent {
  std::uint64_t lease = 0;  // id; if unchanged, the stored pages are still there
  // Usable now. Of disks and HBM it may become less, and more again up to what was granted. What
  // lies beyond it is kept; the borrower is to move it away.
  MediumBytes bytes;
  MediumBytes room;                 // what it could have besides
  std::vector<Extent> memory = {};  // all of it; empty: one extent, at offset 0
  Answer answer = Answer::done;
  std::uint32_t nodes = 0;  // number of nodes with leases
  // Of the lender: total lendable, total leased, and one lease: its node, its size and the time
  // until it lapses. 0 left: that node is connected. holder 0: no other node has a lease.
  std::uint64_t lendable_bytes = 0, leased_bytes = 0, holder = 0, holder_bytes = 0, holder_left_us = 0;

  std::vector<Extent> extents() const {
    if (!memory.empty() || bytes.memory == 0) return memory;
    return {{0, bytes.memory}};
  }
};

// `version`: of the connection.
std::vector<std::byte> encode(const Ask& ask, std::uint16_t version = kProtocolVersion);
std::vector<std::byte> encode(const Lent& lent, std::uint16_t version = kProtocolVersion);
// nullopt: malformed.
std::optional<Ask> read_ask(ConstBytes body, std::uint16_t version = kProtocolVersion);
std::optional<Lent> read_lent(ConstBytes body, std::uint16_t version = kProtocolVersion);
// Sizes of a Lent.
struct LentBytes {
  std::size_t least = 0, most = 0;
};
constexpr LentBytes lent_bytes(std::uint16_t version) noexcept {
  return version < kResizableVersion ? LentBytes{80, 80} : LentBytes{104, 104 + 8 * kMostExtents};
}
static_assert(lent_bytes(kProtocolVersion).most <= kMostBodyBytes);

}  // namespace vmem::rdma::wire
