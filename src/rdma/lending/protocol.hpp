// Protocol between a node that lends room for pages and one that borrows it: the bodies of
// messages (wire.hpp).
//
//   borrower                       lender
//   allocate: Ask              →            room in memory, on disks and in HBM: a lease, or
//                                           another size of the one there is (lease_message.hpp)
//                              ←     allocated: Lent: the lease, valid while both know it
//                              ←     allocated: Lent, unasked (kUnasked): less, or more, of disks
//                                    and HBM
//   put: PageAt, the page      →            verified, then stored
//                              ←     put_done: Reply
//   fetch: PageAt              →            verified first if the last copy arrived damaged
//                              ←     fetched: Reply, the page
//   release: PageAt            →            no reply; version 0: the whole lease, see next line
//                              ←     released, only for a whole lease
//   ping                       →     ←      pong
//   end: End                   →            the node's process has ended: frees its leases
//                              ←     ended
//
// The borrower places its pages within the lease, so it need not ask before it sends a page. A
// request for another lease than there is was meant for another lender or an earlier life of this
// one, and is ignored; an Ask is answered, and changes nothing. Of requests about the same offset,
// and of Asks, the one with the largest sequence counts, in whatever order they arrive.
#pragma once

#include <array>
#include <cstring>
#include <optional>
#include <type_traits>

#include "rdma/node/wire.hpp"
#include "tiers/seal.hpp"

namespace vmem::rdma::wire {

// What a lender keeps pages in. Each medium has a range of a lease's offsets. All offsets are
// multiples of the granule.
enum class Medium : std::uint8_t { memory = 0, disk = 1, hbm = 2 };
inline constexpr std::array kMedia = {Medium::memory, Medium::disk, Medium::hbm};
inline constexpr unsigned kMediumShift = 48;
constexpr std::uint64_t first_offset(Medium medium) noexcept {
  return static_cast<std::uint64_t>(medium) << kMediumShift;
}
// nullopt: of none.
constexpr std::optional<Medium> medium_of(std::uint64_t offset) noexcept {
  const std::uint64_t medium = offset >> kMediumShift;
  return medium < kMedia.size() ? std::optional(static_cast<Medium>(medium)) : std::nullopt;
}
std::string_view medium_words(Medium medium) noexcept;  // "memory", "disk", "HBM"
// A number for each medium.
struct MediumBytes {
  std::uint64_t memory = 0, disk = 0, hbm = 0;
  constexpr std::uint64_t& operator[](Medium medium) noexcept {
    return medium == Medium::memory ? memory : medium == Medium::disk ? disk : hbm;
  }
  constexpr std::uint64_t operator[](Medium medium) const noexcept { return MediumBytes(*this)[medium]; }
  constexpr std::uint64_t sum() const noexcept { return memory + disk + hbm; }
  constexpr MediumBytes operator+(const MediumBytes& more) const noexcept {
    return {memory + more.memory, disk + more.disk, hbm + more.hbm};
  }
  bool operator==(const MediumBytes&) const = default;
};

enum class Answer : std::uint32_t {
  done = 0,
  again = 1,    // busy: other operations are in flight there
  full = 2,     // no room
  unknown = 3,  // no such page, or lease
  damaged = 4,  // checksum mismatch of the sent or the stored page
  failed = 5,   // disk failure or lack of memory; the lender keeps a page it has
  refused = 6,  // invalid order, or outside the lease
  drains = 7,   // grants no new leases
  same = 8,     // who asks has these bytes already
};
std::string_view answer_words(Answer answer) noexcept;

struct End {
  std::uint64_t node = 0, incarnation = 0;
};

// A page version and its expected checksum: tiers::seal.
struct SealedPage {
  pagetable::Serial serial{};
  std::uint64_t version = 0, bytes = 0, tenant = 0;
  std::uint64_t low = 0, high = 0;
  std::uint32_t granule = 0;
  std::uint32_t reserved = 0;
  bool operator==(const SealedPage&) const = default;

  tiers::PageIdentity identity() const { return {{serial, granule}, version, bytes, tenant}; }
  tiers::Checksum checksum() const { return {low, high}; }
  bool matches(ConstBytes page) const { return page.size() == bytes && tiers::seal(page, identity()) == checksum(); }
};
struct PageAt {
  std::uint64_t lease = 0, offset = 0;
  SealedPage page;
  std::uint32_t doubted = 0;  // 1: the last copy from the lender had a checksum mismatch
  std::uint32_t reserved = 0;
};
struct Reply {
  Answer answer = Answer::done;
  std::uint32_t reserved = 0;
  std::uint64_t lease = 0, offset = 0;
};
static_assert(sizeof(End) == 16 && sizeof(SealedPage) == 56 && sizeof(PageAt) == 80 && sizeof(Reply) == 24);
static_assert(sizeof(PageAt) <= kMostBodyBytes);

template <class T>
  requires std::is_trivially_copyable_v<T>
ConstBytes body_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <class T>
  requires std::is_trivially_copyable_v<T>
std::optional<T> read_body(ConstBytes body) {
  if (body.size() != sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, body.data(), sizeof(T));
  return value;
}

}  // namespace vmem::rdma::wire
