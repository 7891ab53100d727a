// Virtual addresses: reservations, and the mappings of frames inside them. The maps here say what a range is made of;
// protection.hpp holds the part that concerns the pages themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "gpu/emu/cuda_api.hpp"
#include "gpu/emu/frames.hpp"
#include "gpu/emu/protection.hpp"

namespace vmem::emu {

// Who made a reservation: the program (cuMemAddressReserve), or the driver for cuMemAlloc.
enum class Purpose { program, heap };

// A stretch of memory that a copy touches, reached through the frame's alias; `frame` keeps it alive.
struct Segment {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  Location location;
  std::shared_ptr<Frame> frame;
};

struct MappingInfo {
  std::uint64_t reservation_begin = 0;
  std::size_t reservation_bytes = 0;
  std::uint64_t begin = 0;
  std::size_t bytes = 0;
  std::shared_ptr<Frame> frame;
  AccessSet access;
  Purpose purpose = Purpose::program;
};

// What kinds of frames a range holds.
struct RangeContents {
  bool device = false;
  bool host_accessible = false;  // host frames that the host may access too
};

class AddressSpace {
 public:
  // 0: no room. `hint` is used when it is free.
  std::uint64_t reserve(std::size_t bytes, std::size_t alignment, std::uint64_t hint, Purpose purpose);
  CUresult free_reservation(std::uint64_t begin, std::size_t bytes, Purpose purpose);

  CUresult map(std::uint64_t begin, std::shared_ptr<Frame> frame, AccessSet access = {});
  // Removes the mappings of the range, which may have gaps but must not cut a mapping in two.
  CUresult unmap(std::uint64_t begin, std::size_t bytes, Purpose purpose);
  // Replaces the access of the given locations in every mapping of the range, which must consist of whole mappings.
  CUresult set_access(std::uint64_t begin, std::size_t bytes, const CUmemAccessDesc* descs, std::size_t count);
  // Makes all heap memory of `owner` accessible to `device`, or no longer.
  void set_heap_access(int owner, int device, Access access);

  bool contains(std::uint64_t address) const;  // in a reservation
  std::optional<MappingInfo> find(std::uint64_t address) const;
  RangeContents contents(std::uint64_t begin, std::size_t bytes) const;
  // All of it is mapped, and `device` may access it so.
  bool accessible(std::uint64_t begin, std::size_t bytes, int device, Access wanted) const;
  // The memory behind a range, if all of it is mapped and `device` may access it so. Heap memory is open to every
  // device's copy engine, as the driver stages such copies where devices cannot reach each other.
  std::optional<std::vector<Segment>> segments(std::uint64_t begin, std::size_t bytes, int device, Access wanted) const;

  bool empty() const;

 private:
  struct Reservation {
    std::size_t bytes;
    Purpose purpose;
  };
  struct Mapping {
    std::size_t bytes;
    std::shared_ptr<Frame> frame;
    AccessSet access;
    Purpose purpose;
  };
  using Mappings = std::map<std::uint64_t, Mapping>;

  // The reservation that holds all of the range, or null.
  const std::pair<const std::uint64_t, Reservation>* reservation_of(std::uint64_t begin, std::size_t bytes) const;
  Mappings::const_iterator mapping_at(std::uint64_t address) const;
  static bool open_to(const Mapping& mapping, int device, Access wanted);
  bool overlaps_mapping(std::uint64_t begin, std::size_t bytes) const;
  bool covered_by_whole_mappings(std::uint64_t begin, std::size_t bytes) const;
  bool cuts_mapping(std::uint64_t begin, std::size_t bytes) const;

  mutable std::shared_mutex mutex_;  // protects both maps; taken before protection's lock
  std::map<std::uint64_t, Reservation> reservations_;
  Mappings mappings_;
};

}  // namespace vmem::emu
