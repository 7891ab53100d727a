#include "runtime/explicit/copies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <new>
#include <utility>

#include "base/memory_reserve.hpp"
#include "runtime/memory/held_blocks.hpp"

namespace vmem::runtime {

namespace {

vmem_range whole(const void* pointer, std::size_t bytes, std::uint32_t access) {
  return {const_cast<void*>(pointer), bytes, access, 0};
}

// Holds the ranges of one piece; releases them on the stream that used them.
class PieceHold {
 public:
  PieceHold(HitPath& hit_path, CUstream stream) : hit_path_(hit_path), stream_(stream) {}
  // One call for all ranges: ranges on one page may want different access.
  Status acquire(std::initializer_list<vmem_range> ranges) {
    std::ranges::copy(ranges, ranges_);
    VMEM_TRY(hit_path_.acquire({ranges_, ranges.size()}, stream_));
    count_ = ranges.size();
    return {};
  }
  Status release() { return hit_path_.release({ranges_, std::exchange(count_, 0)}, stream_); }
  ~PieceHold() {
    // Only after a failure, which the caller reports.
    if (count_ != 0) (void)ran_within_memory([&] { (void)release(); });
  }
  PieceHold(const PieceHold&) = delete;
  PieceHold& operator=(const PieceHold&) = delete;

 private:
  HitPath& hit_path_;
  CUstream stream_;
  vmem_range ranges_[2];
  std::size_t count_ = 0;
};

}  // namespace

// The part of [pointer, pointer + bytes) in its first page; all of it outside vmem's memory.
std::size_t Copies::piece_bytes(const void* pointer, std::size_t bytes) const {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if (!parts_.space.contains(address)) return bytes;
  const pagetable::Region* region = parts_.space.region_at(parts_.space.granule_at(address));
  if (region == nullptr) return bytes;
  const std::uint64_t offset = address - parts_.space.address_of(region->first.index);
  return std::min<std::uint64_t>(bytes, region->page_bytes() - offset % region->page_bytes());
}

Status Copies::copy(void* to, const void* from, std::size_t bytes, vmem_stream stream) {
  const auto to_address = reinterpret_cast<std::uintptr_t>(to);
  const auto from_address = reinterpret_cast<std::uintptr_t>(from);
  if (bytes == 0) return {};
  VMEM_TRY(parts_.slots.ensure_context());
  // Checks both ends first, so that a bad range copies nothing.
  if (parts_.space.contains(to_address)) VMEM_TRY(parts_.addresses.locate(to, bytes));
  if (parts_.space.contains(from_address)) VMEM_TRY(parts_.addresses.locate(from, bytes));
  if (to_address < from_address + bytes && from_address < to_address + bytes) {
    return fail(VMEM_ERROR_INVALID_VALUE,
                fmt::format("copy of {} bytes from {} to {}: the ranges overlap", bytes, from, to));
  }
  auto* destination = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    const std::size_t piece = std::min(piece_bytes(destination, bytes), piece_bytes(source, bytes));
    VMEM_TRY(copy_piece(destination, source, piece, stream));
    destination += piece;
    source += piece;
    bytes -= piece;
  }
  return {};
}

Status Copies::copy_piece(void* to, const void* from, std::size_t bytes, CUstream stream) {
  PieceHold hold(parts_.hit_path, stream);
  const vmem_range reads = whole(from, bytes, VMEM_READ);
  const vmem_range writes = whole(to, bytes, VMEM_WRITE | VMEM_DISCARD);
  const bool from_here = parts_.space.contains(reinterpret_cast<std::uintptr_t>(from));
  const bool to_here = parts_.space.contains(reinterpret_cast<std::uintptr_t>(to));
  if (from_here && to_here) {
    VMEM_TRY(hold.acquire({reads, writes}));
  } else if (from_here || to_here) {
    VMEM_TRY(hold.acquire({from_here ? reads : writes}));
  }
  const auto destination = reinterpret_cast<CUdeviceptr>(to);
  const auto source = reinterpret_cast<CUdeviceptr>(from);
  VMEM_TRY(parts_.driver.check(parts_.driver->cuMemcpyAsync(destination, source, bytes, stream), "cuMemcpyAsync"));
  return hold.release();
}

Status Copies::fill(void* pointer, std::uint32_t value, std::size_t element_bytes, std::size_t bytes,
                    vmem_stream stream) {
  if (bytes == 0) return {};
  VMEM_TRY(parts_.slots.ensure_context());
  VMEM_TRY(parts_.addresses.locate(pointer, bytes));
  auto* at = static_cast<std::byte*>(pointer);
  while (bytes > 0) {
    const std::size_t piece = piece_bytes(at, bytes);
    PieceHold hold(parts_.hit_path, stream);
    VMEM_TRY(hold.acquire({whole(at, piece, VMEM_WRITE | VMEM_DISCARD)}));
    VMEM_TRY(fill_piece(reinterpret_cast<CUdeviceptr>(at), value, element_bytes, piece, stream));
    VMEM_TRY(hold.release());
    at += piece;
    bytes -= piece;
  }
  return {};
}

// If the driver's memset refuses the page, copies fill it from a filled buffer. Driver 580 refuses
// only ranges of several handles of which the host may access one of host memory.
Status Copies::fill_piece(CUdeviceptr address, std::uint32_t value, std::size_t element_bytes, std::size_t bytes,
                          CUstream stream) {
  const auto& driver = parts_.driver;
  const CUresult filled = fill_elements(address, value, element_bytes, bytes, stream);
  if (filled != CUDA_ERROR_INVALID_VALUE) return driver.check(filled, "cuMemsetAsync");
  const std::size_t buffer_bytes = std::min<std::size_t>(bytes, std::size_t{2} << 20);
  CUdeviceptr buffer = 0;
  VMEM_TRY(driver.check(driver->cuMemAllocAsync(&buffer, buffer_bytes, stream), "cuMemAllocAsync"));
  CUresult result = fill_elements(buffer, value, element_bytes, buffer_bytes, stream);
  for (std::size_t done = 0; done < bytes && result == CUDA_SUCCESS; done += buffer_bytes) {
    result = driver->cuMemcpyAsync(address + done, buffer, std::min(buffer_bytes, bytes - done), stream);
  }
  const CUresult freed = driver->cuMemFreeAsync(buffer, stream);
  VMEM_TRY(driver.check(result, "cuMemcpyAsync"));
  return driver.check(freed, "cuMemFreeAsync");
}

CUresult Copies::fill_elements(CUdeviceptr address, std::uint32_t value, std::size_t element_bytes, std::size_t bytes,
                               CUstream stream) const {
  const auto& driver = parts_.driver;
  switch (element_bytes) {
    case 1:
      return driver->cuMemsetD8Async(address, static_cast<unsigned char>(value), bytes, stream);
    case 2:
      return driver->cuMemsetD16Async(address, static_cast<unsigned short>(value), bytes / 2, stream);
    default:
      return driver->cuMemsetD32Async(address, value, bytes / 4, stream);
  }
}

// Calls copy(piece) per page of the range, while the page is open.
template <class Copy>
Status Copies::each_page(const void* pointer, std::size_t bytes, Direction direction, Copy&& copy) {
  VMEM_ASSIGN(const PageRun located, parts_.addresses.locate(pointer, bytes));
  pagetable::Region& region = *located.region;
  const std::uint64_t page_bytes = region.page_bytes();
  const std::uintptr_t base = parts_.space.address_of(region.first.index);
  const std::uint64_t start = reinterpret_cast<std::uintptr_t>(pointer) - base;
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t offset = (start + done) % page_bytes;
    const std::uint64_t piece = std::min<std::uint64_t>(bytes - done, page_bytes - offset);
    migration::OpenPageRequest open;
    open.run = {&region, std::uint32_t((start + done) / page_bytes), 1};
    open.write = direction == Direction::to_vmem;
    VMEM_TRY(parts_.mover.call(open));
    // The open page keeps the region alive. Before it was opened, another thread may have freed the
    // region, and the record may describe another allocation now.
    const bool same = region.page_bytes() == page_bytes && parts_.space.address_of(region.first.index) == base;
    Status copied;
    const bool had = !same || ran_within_memory([&] {
      copied = copy(OpenPiece{.host = open.host == nullptr ? nullptr : open.host + offset,
                              .window = open.device_window == 0 ? 0 : open.device_window + offset,
                              .offset = done,
                              .bytes = piece,
                              .region = &region});
    });
    migration::ClosePageRequest close;
    close.run = open.run;
    VMEM_TRY(parts_.mover.call(close));  // even if the copy failed
    if (!had) throw std::bad_alloc();
    if (!same)
      return fail(VMEM_ERROR_INVALID_POINTER,
                  fmt::format("the allocation at {} was freed by another thread meanwhile", pointer));
    VMEM_TRY(copied);
    done += piece;
  }
  return {};
}

Status Copies::copy_device(const OpenPiece& piece, void* host, Direction direction) {
  Device& device = parts_.devices[std::size_t(piece.region->device)];
  const auto way = direction == Direction::to_vmem ? WindowCopy::to_window : WindowCopy::to_host;
  return copy_window(device, piece.window, host, piece.bytes, way);
}

Status Copies::read(void* host, const void* pointer, std::size_t bytes) {
  auto* destination = static_cast<std::byte*>(host);
  return each_page(pointer, bytes, Direction::to_host, [&](const OpenPiece& piece) {
    if (piece.window != 0) return copy_device(piece, destination + piece.offset, Direction::to_host);
    if (piece.host == nullptr) {
      // Never written: any contents are valid.
      std::memset(destination + piece.offset, 0, piece.bytes);
    } else {
      std::memcpy(destination + piece.offset, piece.host, piece.bytes);
    }
    return Status{};
  });
}

Status Copies::write(void* pointer, const void* host, std::size_t bytes) {
  if (const auto block = parts_.small.find(reinterpret_cast<std::uintptr_t>(pointer))) {
    VMEM_TRY(refuse_held_block(parts_.slots, parts_.small, block->base));
  }
  auto* source = static_cast<std::byte*>(const_cast<void*>(host));
  return each_page(pointer, bytes, Direction::to_vmem, [&](const OpenPiece& piece) {
    if (piece.window != 0) return copy_device(piece, source + piece.offset, Direction::to_vmem);
    std::memcpy(piece.host, source + piece.offset, piece.bytes);
    return Status{};
  });
}

}  // namespace vmem::runtime
