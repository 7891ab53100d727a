#include "gpu/emu/heap.hpp"

#include "gpu/emu/machine.hpp"

namespace vmem::emu {
namespace {

constexpr std::size_t small_bytes_max = std::size_t{1} << 20;
constexpr std::size_t small_alignment = 512;

std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }
std::size_t rounded_size(std::size_t bytes) {
  return round_up(bytes, bytes <= small_bytes_max ? small_alignment : granule_bytes);
}

}  // namespace

CUresult Heap::allocate(std::size_t bytes, std::uint64_t& address) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > device_.memory->capacity_bytes()) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard lock(mutex_);
  return allocate_locked(rounded_size(bytes), address);
}

CUresult Heap::allocate_locked(std::size_t rounded, std::uint64_t& address) {
  const auto attempt = [&] {
    return rounded <= small_bytes_max ? allocate_small(rounded, address) : map_memory(rounded, address);
  };
  CUresult result = attempt();
  if (result == CUDA_ERROR_OUT_OF_MEMORY && trim_locked()) result = attempt();
  if (result == CUDA_SUCCESS && rounded > small_bytes_max) allocations_[address] = {rounded, 0, State::live};
  return result;
}

CUresult Heap::allocate_small(std::size_t rounded, std::uint64_t& address) {
  if (take_from_slabs(rounded, address)) return CUDA_SUCCESS;
  std::uint64_t slab = 0;
  if (const CUresult result = map_memory(granule_bytes, slab); result != CUDA_SUCCESS) return result;
  slabs_[slab] = {{slab, granule_bytes}};
  take_from_slabs(rounded, address);
  return CUDA_SUCCESS;
}

bool Heap::take_from_slabs(std::size_t rounded, std::uint64_t& address) {
  for (auto& [slab, free_ranges] : slabs_)
    for (auto it = free_ranges.begin(); it != free_ranges.end(); ++it) {
      const auto [begin, bytes] = *it;
      if (bytes < rounded) continue;
      free_ranges.erase(it);
      if (bytes > rounded) free_ranges[begin + rounded] = bytes - rounded;
      address = begin;
      allocations_[begin] = {rounded, slab, State::live};
      return true;
    }
  return false;
}

CUresult Heap::map_memory(std::size_t bytes, std::uint64_t& address) {
  AddressSpace& space = machine().addresses();
  auto frame = device_.memory->create(bytes, {false, device_.ordinal}, false);
  if (!frame) return CUDA_ERROR_OUT_OF_MEMORY;
  address = space.reserve(bytes, granule_bytes, 0, Purpose::heap);
  if (address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  AccessSet access;
  access.set_device(device_.ordinal, Access::read_write);
  for (int device = 0; device < device_count_max; ++device)
    if (device_.peer_accessors.load() >> device & 1) access.set_device(device, Access::read_write);
  const CUresult result = space.map(address, std::move(frame), access);
  if (result != CUDA_SUCCESS) space.free_reservation(address, bytes, Purpose::heap);
  return result;
}

void Heap::unmap_memory(std::uint64_t address, std::size_t bytes) {
  machine().addresses().unmap(address, bytes, Purpose::heap);
  machine().addresses().free_reservation(address, bytes, Purpose::heap);
}

CUresult Heap::free(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(address);
  if (found == allocations_.end() || found->second.state != State::live) return CUDA_ERROR_INVALID_VALUE;
  erase(found);
  return CUDA_SUCCESS;
}

void Heap::erase(std::map<std::uint64_t, Allocation>::iterator allocation) {
  const auto [address, details] = *allocation;
  allocations_.erase(allocation);
  if (details.slab == 0) return unmap_memory(address, details.bytes);
  FreeRanges& free_ranges = slabs_.at(details.slab);
  auto it = free_ranges.emplace(address, details.bytes).first;
  const auto next = std::next(it);
  if (next != free_ranges.end() && next->first == address + it->second) {
    it->second += next->second;
    free_ranges.erase(next);
  }
  if (it != free_ranges.begin()) {
    const auto previous = std::prev(it);
    if (previous->first + previous->second == address) {
      previous->second += it->second;
      free_ranges.erase(it);
      it = previous;
    }
  }
  if (it->second == granule_bytes) {
    slabs_.erase(details.slab);
    unmap_memory(details.slab, granule_bytes);
  }
}

CUresult Heap::allocate_cached(std::size_t bytes, std::uint64_t& address) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > device_.memory->capacity_bytes()) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::size_t rounded = rounded_size(bytes);
  const std::lock_guard lock(mutex_);
  const auto found = cached_.lower_bound(rounded);
  if (found == cached_.end() || found->first > rounded + rounded / 4) return allocate_locked(rounded, address);
  address = found->second;
  cached_.erase(found);
  Allocation& allocation = allocations_.at(address);
  allocation.state = State::live;
  allocation.synchronizes = false;
  return CUDA_SUCCESS;
}

CUresult Heap::begin_free(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(address);
  if (found == allocations_.end() || found->second.state != State::live) return CUDA_ERROR_INVALID_VALUE;
  found->second.state = State::being_freed;
  return CUDA_SUCCESS;
}

void Heap::finish_free(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto found = allocations_.find(address);
  // The context may end first: the stream can belong to another one.
  if (found == allocations_.end()) return;
  found->second.state = State::cached;
  cached_.emplace(found->second.bytes, address);
  has_cached_.store(true, std::memory_order_relaxed);
}

std::map<std::uint64_t, Heap::Allocation>::const_iterator Heap::live_at(std::uint64_t address) const {
  auto it = allocations_.upper_bound(address);
  if (it == allocations_.begin()) return allocations_.end();
  --it;
  const bool gone = it->second.state == State::cached || address - it->first >= it->second.bytes;
  return gone ? allocations_.end() : it;
}

Heap::Range Heap::find(std::uint64_t address) const {
  const std::lock_guard lock(mutex_);
  const auto it = live_at(address);
  if (it == allocations_.end()) return {};
  return {it->first, it->second.bytes, it->second.synchronizes};
}

bool Heap::set_synchronizes(std::uint64_t address, bool value) {
  const std::lock_guard lock(mutex_);
  const auto it = live_at(address);
  if (it == allocations_.end()) return false;
  allocations_.at(it->first).synchronizes = value;
  return true;
}

bool Heap::trim() {
  if (!has_cached_.load(std::memory_order_relaxed)) return false;
  const std::lock_guard lock(mutex_);
  return trim_locked();
}

bool Heap::trim_locked() {
  has_cached_.store(false, std::memory_order_relaxed);
  if (cached_.empty()) return false;
  for (const auto& [bytes, address] : cached_) erase(allocations_.find(address));
  cached_.clear();
  return true;
}

void Heap::clear() {
  const std::lock_guard lock(mutex_);
  cached_.clear();
  while (!allocations_.empty()) erase(allocations_.begin());
}

}  // namespace vmem::emu
