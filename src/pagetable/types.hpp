// Strong types of the page table, and the packed words that threads and the mover share.
#pragma once

#include <compare>
#include <cstdint>

namespace vmem::pagetable {

inline constexpr std::uint64_t kGranuleShift = 21;  // 2 MiB: the driver's mapping granularity
inline constexpr std::uint64_t kGranuleBytes = std::uint64_t{1} << kGranuleShift;

// A 2 MiB unit of the address space, counted from its base.
struct Granule {
  std::uint32_t index = 0;
  auto operator<=>(const Granule&) const = default;
};

// Index into the region table; 0: no region.
struct RegionId {
  std::uint32_t value = 0;
  auto operator<=>(const RegionId&) const = default;
};

// One page of one region.
struct PageId {
  RegionId region;
  std::uint32_t index = 0;
  auto operator<=>(const PageId&) const = default;
};

// Distinguishes regions that had the same addresses at different times. Numbers are never reused:
// within the process for its own regions, which have the highest bit set; within the cluster for
// regions that several nodes may open.
enum class Serial : std::uint64_t {};
inline constexpr Serial kFirstOwnSerial{std::uint64_t{1} << 63};

// A page's identity in every tier: the serial of its region, and its first granule.
struct PageKey {
  Serial serial{};
  std::uint32_t granule = 0;
  auto operator<=>(const PageKey&) const = default;
};

enum class Access : std::uint8_t { none = 0, read = 1, write = 2 };  // write includes read

// A run of granules and the access it is held for: one word, published by a thread with one store.
//   bits 0-28 first granule, 29-57 count, 58-59 access, 63 valid
class Span {
 public:
  static constexpr std::uint64_t kEmpty = 0;
  constexpr Span() = default;
  constexpr explicit Span(std::uint64_t word) : word_(word) {}
  constexpr Span(Granule first, std::uint32_t count, Access access)
      : word_(std::uint64_t{first.index} | std::uint64_t{count} << 29 | std::uint64_t(access) << 58 | kValid) {}
  // Exceeds every address space. Held by launches that may use any page (Launches::begin).
  static constexpr Span everything() { return Span({0}, kFieldMask, Access::read); }
  constexpr bool is_everything() const { return count() == kFieldMask; }
  constexpr std::uint64_t word() const { return word_; }
  constexpr bool empty() const { return word_ == kEmpty; }
  constexpr std::uint32_t first() const { return std::uint32_t(word_ & kFieldMask); }
  constexpr std::uint32_t count() const { return std::uint32_t(word_ >> 29 & kFieldMask); }
  constexpr std::uint32_t end() const { return first() + count(); }
  constexpr Access access() const { return Access(word_ >> 58 & 3); }
  constexpr bool overlaps(std::uint32_t begin, std::uint32_t end_granule) const {
    return !empty() && first() < end_granule && begin < end();
  }

 private:
  static constexpr std::uint64_t kFieldMask = (std::uint64_t{1} << 29) - 1;
  static constexpr std::uint64_t kValid = std::uint64_t{1} << 63;
  std::uint64_t word_ = kEmpty;
};

// When a use of pages ends: once epoch `epoch` of the stream with record index `stream` completes.
//   bits 0-47 epoch, 48-63 stream index; 0: no use (stream records count from 1).
class Stamp {
 public:
  constexpr Stamp() = default;
  constexpr Stamp(std::uint16_t stream, std::uint64_t epoch) : word_(std::uint64_t{stream} << 48 | epoch) {}
  constexpr explicit Stamp(std::uint64_t word) : word_(word) {}
  constexpr std::uint64_t word() const { return word_; }
  constexpr bool empty() const { return word_ == 0; }
  constexpr std::uint16_t stream() const { return std::uint16_t(word_ >> 48); }
  constexpr std::uint64_t epoch() const { return word_ & ((std::uint64_t{1} << 48) - 1); }
  constexpr bool operator==(const Stamp&) const = default;

 private:
  std::uint64_t word_ = 0;
};

}  // namespace vmem::pagetable
