// Virtual addresses: reservations and the mappings of frames inside them. The maps here describe
// ranges; protection.hpp manages the pages themselves.
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

// Who made a reservation: the program (cuMemAddressReserve) or the driver (cuMemAlloc).
enum class Purpose { program, heap };

// A contiguous piece of a copy, accessed through the frame's alias. `frame` keeps the memory alive.
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
  CUmemGenericAllocationHandle handle = 0;
};

// The kinds of frames in a range.
struct RangeContents {
  bool device = false;
  bool host_accessible = false;  // some mapping is accessible to the host
};

class AddressSpace {
 public:
  // Returns the begin, or 0 without room. Uses `hint` if that range is free and aligned.
  std::uint64_t reserve(std::size_t bytes, std::size_t alignment, std::uint64_t hint, Purpose purpose);
  CUresult free_reservation(std::uint64_t begin, std::size_t bytes, Purpose purpose);

  // `handle`: the program's handle of the frame; 0 for heap memory.
  CUresult map(std::uint64_t begin, std::shared_ptr<Frame> frame, AccessSet access,
               CUmemGenericAllocationHandle handle = 0);
  // Removes the mappings in the range, which may have gaps but must not cut a mapping.
  CUresult unmap(std::uint64_t begin, std::size_t bytes, Purpose purpose);
  // Sets the access of the given locations in every mapping of the range. The range must consist of
  // whole mappings.
  CUresult set_access(std::uint64_t begin, std::size_t bytes, const CUmemAccessDesc* descs, std::size_t count);
  // Sets the access of `device` to all heap memory of `owner`.
  void set_heap_access(int owner, int device, Access access);

  bool contains(std::uint64_t address) const;  // in a reservation
  std::optional<MappingInfo> find(std::uint64_t address) const;
  RangeContents contents(std::uint64_t begin, std::size_t bytes) const;
  // True if the whole range is mapped and `device` has the wanted access.
  bool accessible(std::uint64_t begin, std::size_t bytes, int device, Access wanted) const;
  // The memory behind the range, if the whole range is mapped and `device` has the wanted access.
  // In both functions heap memory is open to every device: the driver stages copies where devices
  // cannot reach each other.
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
    CUmemGenericAllocationHandle handle;
  };
  using Mappings = std::map<std::uint64_t, Mapping>;

  // The reservation that contains the whole range, or null.
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
