#include "runtime/suballocator/block_map.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/sizes.hpp"
#include "runtime/suballocator/slab.hpp"

namespace vmem::runtime {
namespace {

std::size_t host_page_bytes() {
  static const auto bytes = std::size_t(::sysconf(_SC_PAGESIZE));
  return bytes;
}

// Zeroed memory, committed on first touch. Huge pages would commit 256 MiB of words for one slab.
Result<void*> reserve(std::size_t bytes, int protection) {
  void* table = ::mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (table == MAP_FAILED) {
    const int error = errno;
    return fail(VMEM_ERROR_ADDRESS_SPACE,
                fmt::format("cannot reserve {} of addresses for the table of small blocks: {}; lower --space",
                            format_bytes(bytes), std::strerror(error)),
                error);
  }
  // Fails, harmlessly, on a kernel without huge pages.
  (void)::madvise(table, bytes, MADV_NOHUGEPAGE);
  return table;
}

}  // namespace

BlockMap::~BlockMap() {
  if (granules_ != nullptr) ::munmap(static_cast<void*>(granules_), bytes_ / kGranuleBytes * sizeof(Granule));
  if (words_ != nullptr) ::munmap(static_cast<void*>(words_), bytes_ / kUnitBytes * sizeof(*words_));
}

Status BlockMap::reserve_tables() {
  VMEM_ASSIGN(void* const granules, reserve(bytes_ / kGranuleBytes * sizeof(Granule), PROT_READ | PROT_WRITE));
  granules_ = static_cast<Granule*>(granules);
  // Inaccessible until a slab is added: strict overcommit accounting would charge 1/128 of the
  // address space.
  VMEM_ASSIGN(void* const words, reserve(bytes_ / kUnitBytes * sizeof(*words_), PROT_NONE));
  words_ = static_cast<std::atomic<std::uint16_t>*>(words);
  return {};
}

BlockMap::Span BlockMap::words_of(const Slab& slab) const noexcept {
  const auto begin = reinterpret_cast<std::uintptr_t>(words_ + unit(slab.base));
  return {begin, begin + slab.granules * kGranuleBytes / kUnitBytes * sizeof(*words_)};
}

Status BlockMap::add(Slab& slab) {
  const auto [begin, end] = words_of(slab);
  const std::uintptr_t mask = host_page_bytes() - 1;
  const std::uintptr_t first = begin & ~mask;
  const std::uintptr_t last = (end + mask) & ~mask;
  if (::mprotect(reinterpret_cast<void*>(first), last - first, PROT_READ | PROT_WRITE) != 0) {
    const int error = errno;
    return fail(VMEM_ERROR_OUT_OF_MEMORY,
                fmt::format("no host memory for the {} that describe the small blocks of a slab: {}",
                            format_bytes(last - first), std::strerror(error)),
                error);
  }
  for (std::uint32_t i = 0; i < slab.granules; ++i) granules_[granule(slab.base) + i].slab = &slab;
  place(slab, Placement::kNoClass);
  return {};
}

void BlockMap::place(const Slab& slab, std::uint32_t size_class) noexcept {
  for (std::uint32_t i = 0; i < slab.granules; ++i) {
    granules_[granule(slab.base) + i].placement.store(Placement::of(slab.device, size_class, i).bits,
                                                      std::memory_order_release);
  }
}

void BlockMap::remove(const Slab& slab) noexcept {
  for (std::uint32_t i = 0; i < slab.granules; ++i) {
    granules_[granule(slab.base) + i].placement.store(0, std::memory_order_release);
  }
  // The words are all 0, and still read as 0 after this. Pages shared with a neighbour's words
  // stay.
  const auto [begin, end] = words_of(slab);
  const std::uintptr_t mask = host_page_bytes() - 1;
  if (((begin | end) & mask) == 0) (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

std::optional<SmallBlock> BlockMap::find(std::uintptr_t address) const noexcept {
  const Placement seen = placement(address);
  if (!seen.in_slab() || seen.size_class() == Placement::kNoClass) return std::nullopt;
  const SizeClass& size_class = kSizeClasses[seen.size_class()];
  const std::uintptr_t slab = base_ + (granule(address) - seen.position()) * kGranuleBytes;
  const std::size_t index = (address - slab) / size_class.block_bytes;
  if (index >= size_class.blocks) return std::nullopt;
  const std::uintptr_t block = slab + index * size_class.block_bytes;
  const std::uint16_t word = words_[unit(block)].load(std::memory_order_acquire);
  // The slab may have been replaced by one of another class, which changes the placement before it
  // writes the word.
  if ((word & kLive) == 0 || placement(address).bits != seen.bits) return std::nullopt;
  return SmallBlock{block, size_class.block_bytes - (word & kMostExcessBytes), seen.device()};
}

Error BlockMap::explain(std::uintptr_t address) const {
  const auto invalid = [](std::string message) { return Error{VMEM_ERROR_INVALID_POINTER, 0, std::move(message)}; };
  const Placement seen = placement(address);
  if (!seen.in_slab()) return invalid(fmt::format("{:#x} is not the address of a small allocation", address));
  if (const auto block = find(address); block && block->base != address) {
    return invalid(fmt::format(
        "{:#x} lies {} bytes inside the allocation of {} bytes at {:#x}: pass the address that vmem_malloc gave",
        address, address - block->base, block->bytes, block->base));
  }
  if (seen.size_class() == Placement::kNoClass) {
    return invalid(fmt::format("{:#x} is already free: nothing around it is allocated", address));
  }
  const SizeClass& size_class = kSizeClasses[seen.size_class()];
  const std::uintptr_t slab = base_ + (granule(address) - seen.position()) * kGranuleBytes;
  const std::size_t index = (address - slab) / size_class.block_bytes;
  const std::uintptr_t block = slab + index * size_class.block_bytes;
  if (index >= size_class.blocks) {
    return invalid(fmt::format("{:#x} lies past the last of the {} blocks of {} at {:#x}: it was never allocated",
                               address, size_class.blocks, format_bytes(size_class.block_bytes), slab));
  }
  if (block != address) {
    return invalid(fmt::format("{:#x} lies {} bytes inside the block of {} at {:#x} on device {}, which is free",
                               address, address - block, format_bytes(size_class.block_bytes), block, seen.device()));
  }
  return invalid(fmt::format("{:#x} is already free: a block of {} on device {}", address,
                             format_bytes(size_class.block_bytes), seen.device()));
}

std::size_t BlockMap::table_bytes(std::uint32_t granules) const noexcept {
  return granules * (kGranuleBytes / kUnitBytes * sizeof(*words_) + sizeof(Granule));
}

}  // namespace vmem::runtime
