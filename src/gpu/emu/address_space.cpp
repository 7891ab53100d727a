#include "gpu/emu/address_space.hpp"

#include <sys/mman.h>

#include <algorithm>

#include "gpu/emu/config.hpp"

namespace vmem::emu {
namespace {

std::uint64_t map_inaccessible(std::uint64_t hint, std::size_t bytes) {
  void* p = mmap(reinterpret_cast<void*>(hint), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? 0 : reinterpret_cast<std::uint64_t>(p);
}

void unmap_pages(std::uint64_t begin, std::uint64_t end) {
  if (end > begin) munmap(reinterpret_cast<void*>(begin), end - begin);
}

std::uint64_t reserve_aligned(std::size_t bytes, std::size_t alignment) {
  const std::uint64_t begin = map_inaccessible(0, bytes + alignment);
  if (begin == 0) return 0;
  const std::uint64_t aligned = (begin + alignment - 1) / alignment * alignment;
  unmap_pages(begin, aligned);
  unmap_pages(aligned + bytes, begin + bytes + alignment);
  return aligned;
}

std::uint64_t reserve_at(std::uint64_t hint, std::size_t bytes, std::size_t alignment) {
  if (hint == 0 || hint % alignment != 0) return 0;
  const std::uint64_t begin = map_inaccessible(hint, bytes);
  if (begin == hint) return begin;
  if (begin != 0) unmap_pages(begin, begin + bytes);
  return 0;
}

void apply(AccessSet& access, const CUmemAccessDesc& desc) {
  const auto granted = static_cast<Access>(desc.flags);
  if (desc.location.type == CU_MEM_LOCATION_TYPE_DEVICE)
    access.set_device(desc.location.id, granted);
  else
    access.set_host(granted);
}

}  // namespace

std::uint64_t AddressSpace::reserve(std::size_t bytes, std::size_t alignment, std::uint64_t hint, Purpose purpose) {
  alignment = std::max(alignment, granule_bytes);
  std::uint64_t begin = reserve_at(hint, bytes, alignment);
  if (begin == 0) begin = reserve_aligned(bytes, alignment);
  if (begin == 0) return 0;
  if (!protection::add_reservation(begin, bytes)) {
    unmap_pages(begin, begin + bytes);
    return 0;
  }
  const std::unique_lock lock(mutex_);
  reservations_[begin] = {bytes, purpose};
  return begin;
}

CUresult AddressSpace::free_reservation(std::uint64_t begin, std::size_t bytes, Purpose purpose) {
  const std::unique_lock lock(mutex_);
  const auto found = reservations_.find(begin);
  if (found == reservations_.end() || found->second.bytes != bytes || found->second.purpose != purpose)
    return CUDA_ERROR_INVALID_VALUE;
  if (overlaps_mapping(begin, bytes)) return CUDA_ERROR_INVALID_VALUE;
  reservations_.erase(found);
  protection::remove_reservation(begin);
  unmap_pages(begin, begin + bytes);
  return CUDA_SUCCESS;
}

CUresult AddressSpace::map(std::uint64_t begin, std::shared_ptr<Frame> frame, AccessSet access,
                           CUmemGenericAllocationHandle handle) {
  const std::size_t bytes = frame->bytes();
  const std::unique_lock lock(mutex_);
  const auto* reservation = reservation_of(begin, bytes);
  if (!reservation || overlaps_mapping(begin, bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (!protection::map(begin, bytes, frame->fd(), frame->offset(), access)) return CUDA_ERROR_OPERATING_SYSTEM;
  mappings_[begin] = {bytes, std::move(frame), access, reservation->second.purpose, handle};
  return CUDA_SUCCESS;
}

CUresult AddressSpace::unmap(std::uint64_t begin, std::size_t bytes, Purpose purpose) {
  // Destroyed after the unlock, because freeing a frame takes time.
  std::vector<std::shared_ptr<Frame>> freed;
  const std::unique_lock lock(mutex_);
  const auto* reservation = reservation_of(begin, bytes);
  if (!reservation || reservation->second.purpose != purpose || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (begin % granule_bytes != 0 || bytes % granule_bytes != 0 || cuts_mapping(begin, bytes))
    return CUDA_ERROR_INVALID_VALUE;
  if (!protection::unmap(begin, bytes)) return CUDA_ERROR_OPERATING_SYSTEM;
  auto it = mappings_.lower_bound(begin);
  while (it != mappings_.end() && it->first < begin + bytes) {
    freed.push_back(std::move(it->second.frame));
    it = mappings_.erase(it);
  }
  return CUDA_SUCCESS;
}

CUresult AddressSpace::set_access(std::uint64_t begin, std::size_t bytes, const CUmemAccessDesc* descs,
                                  std::size_t count) {
  const std::unique_lock lock(mutex_);
  if (!covered_by_whole_mappings(begin, bytes)) return CUDA_ERROR_INVALID_VALUE;
  const auto end = mappings_.lower_bound(begin + bytes);
  for (auto it = mappings_.find(begin); it != end; ++it)
    for (std::size_t i = 0; i < count; ++i)
      if (descs[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE && !it->second.frame->location().host)
        return CUDA_ERROR_INVALID_VALUE;
  for (auto it = mappings_.find(begin); it != end; ++it) {
    Mapping& mapping = it->second;
    AccessSet access = mapping.access;
    for (std::size_t i = 0; i < count; ++i) apply(access, descs[i]);
    if (!protection::set_access(it->first, mapping.bytes, access)) return CUDA_ERROR_OPERATING_SYSTEM;
    mapping.access = access;
  }
  return CUDA_SUCCESS;
}

void AddressSpace::set_heap_access(int owner, int device, Access access) {
  const std::unique_lock lock(mutex_);
  for (auto& [begin, mapping] : mappings_) {
    if (mapping.purpose != Purpose::heap || mapping.frame->location() != Location{false, owner}) continue;
    mapping.access.set_device(device, access);
    protection::set_access(begin, mapping.bytes, mapping.access);
  }
}

bool AddressSpace::contains(std::uint64_t address) const {
  const std::shared_lock lock(mutex_);
  return reservation_of(address, 1) != nullptr;
}

std::optional<MappingInfo> AddressSpace::find(std::uint64_t address) const {
  const std::shared_lock lock(mutex_);
  const auto it = mapping_at(address);
  if (it == mappings_.end()) return std::nullopt;
  const auto& [begin, mapping] = *it;
  const auto& [reserved_begin, reservation] = *reservation_of(begin, mapping.bytes);
  return MappingInfo{reserved_begin, reservation.bytes, begin,           mapping.bytes,
                     mapping.frame,  mapping.access,    mapping.purpose, mapping.handle};
}

RangeContents AddressSpace::contents(std::uint64_t begin, std::size_t bytes) const {
  RangeContents result;
  const std::shared_lock lock(mutex_);
  auto it = mapping_at(begin);
  if (it == mappings_.end()) it = mappings_.lower_bound(begin);
  for (; it != mappings_.end() && it->first < begin + bytes; ++it) {
    if (!it->second.frame->location().host) result.device = true;
    if (it->second.access.host() != Access::none) result.host_accessible = true;
  }
  return result;
}

bool AddressSpace::accessible(std::uint64_t begin, std::size_t bytes, int device, Access wanted) const {
  const std::shared_lock lock(mutex_);
  const std::uint64_t end = begin + bytes;
  for (auto it = mapping_at(begin); begin < end; ++it) {
    if (it == mappings_.end() || it->first > begin || !open_to(it->second, device, wanted)) return false;
    begin = it->first + it->second.bytes;
  }
  return true;
}

std::optional<std::vector<Segment>> AddressSpace::segments(std::uint64_t begin, std::size_t bytes, int device,
                                                           Access wanted) const {
  std::vector<Segment> result;
  const std::shared_lock lock(mutex_);
  for (auto it = mapping_at(begin); bytes > 0; ++it) {
    if (it == mappings_.end() || it->first > begin || !open_to(it->second, device, wanted)) return std::nullopt;
    const Mapping& mapping = it->second;
    const std::size_t offset = begin - it->first;
    const std::size_t here = std::min(bytes, mapping.bytes - offset);
    result.push_back({mapping.frame->alias() + offset, here, mapping.frame->location(), mapping.frame});
    begin += here;
    bytes -= here;
  }
  return result;
}

bool AddressSpace::empty() const {
  const std::shared_lock lock(mutex_);
  return reservations_.empty();
}

const std::pair<const std::uint64_t, AddressSpace::Reservation>* AddressSpace::reservation_of(std::uint64_t begin,
                                                                                              std::size_t bytes) const {
  const auto next = reservations_.upper_bound(begin);
  if (next == reservations_.begin()) return nullptr;
  const auto found = std::prev(next);
  const std::size_t offset = begin - found->first;
  return offset < found->second.bytes && bytes <= found->second.bytes - offset ? &*found : nullptr;
}

AddressSpace::Mappings::const_iterator AddressSpace::mapping_at(std::uint64_t address) const {
  const auto next = mappings_.upper_bound(address);
  if (next == mappings_.begin()) return mappings_.end();
  const auto it = std::prev(next);
  return address - it->first < it->second.bytes ? it : mappings_.end();
}

bool AddressSpace::open_to(const Mapping& mapping, int device, Access wanted) {
  return mapping.purpose == Purpose::heap || permits(mapping.access.device(device), wanted);
}

bool AddressSpace::overlaps_mapping(std::uint64_t begin, std::size_t bytes) const {
  if (mapping_at(begin) != mappings_.end()) return true;
  const auto next = mappings_.lower_bound(begin);
  return next != mappings_.end() && next->first < begin + bytes;
}

bool AddressSpace::covered_by_whole_mappings(std::uint64_t begin, std::size_t bytes) const {
  std::uint64_t position = begin;
  auto it = mappings_.find(begin);
  for (; it != mappings_.end() && it->first == position && position < begin + bytes; ++it) {
    if (it->second.purpose != Purpose::program) return false;
    position += it->second.bytes;
  }
  return position == begin + bytes && bytes > 0;
}

bool AddressSpace::cuts_mapping(std::uint64_t begin, std::size_t bytes) const {
  const auto cut_at = [this](std::uint64_t address) {
    const auto it = mapping_at(address);
    return it != mappings_.end() && it->first != address;
  };
  return cut_at(begin) || cut_at(begin + bytes);
}

}  // namespace vmem::emu
