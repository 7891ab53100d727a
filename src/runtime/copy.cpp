// Copies, fills, and host access, in pieces that never cross a page: a page lies in one place, and the driver's copies do not span
// device and host memory.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "base/memory_reserve.hpp"
#include "gpu/handles.hpp"
#include "runtime/runtime.hpp"

namespace vmem::runtime {

namespace {

vmem_range whole(const void* pointer, std::size_t bytes, std::uint32_t access) {
  return {const_cast<void*>(pointer), bytes, access, 0};
}

// Holds ranges for one piece; released on the stream that used them.
class PieceHold {
 public:
  PieceHold(Runtime& runtime, CUstream stream) : runtime_(runtime), stream_(stream) {}
  // All in one call: ranges on one page may want different access.
  Status acquire(std::initializer_list<vmem_range> ranges) {
    std::ranges::copy(ranges, ranges_);
    VMEM_TRY(runtime_.acquire({ranges_, ranges.size()}, stream_));
    count_ = ranges.size();
    return {};
  }
  Status release() { return runtime_.release({ranges_, std::exchange(count_, 0)}, stream_); }
  ~PieceHold() {
    // On the way out of a failure, which is what gets reported.
    if (count_ != 0) (void)had_memory([&] { (void)release(); });
  }
  PieceHold(const PieceHold&) = delete;
  PieceHold& operator=(const PieceHold&) = delete;

 private:
  Runtime& runtime_;
  CUstream stream_;
  vmem_range ranges_[2];
  std::size_t count_ = 0;
};

}  // namespace

// How much of [pointer, pointer + bytes) lies in its first page; all of it where the memory is not ours.
std::size_t Runtime::piece_bytes(const void* pointer, std::size_t bytes) const {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if (!space_->contains(address)) return bytes;
  const pagetable::Region* region = space_->region_at(space_->granule_at(address));
  if (region == nullptr) return bytes;
  const std::uint64_t offset = address - space_->address_of(region->first.index);
  return std::min<std::uint64_t>(bytes, region->page_bytes() - offset % region->page_bytes());
}

Status Runtime::copy(void* to, const void* from, std::size_t bytes, vmem_stream stream) {
  const auto to_address = reinterpret_cast<std::uintptr_t>(to);
  const auto from_address = reinterpret_cast<std::uintptr_t>(from);
  if (bytes == 0) return {};
  VMEM_TRY(ensure_context());
  // Both ends first, so that a bad range copies nothing.
  if (space_->contains(to_address)) VMEM_TRY(locate(to, bytes));
  if (space_->contains(from_address)) VMEM_TRY(locate(from, bytes));
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

Status Runtime::copy_piece(void* to, const void* from, std::size_t bytes, CUstream stream) {
  PieceHold hold(*this, stream);
  const vmem_range reads = whole(from, bytes, VMEM_READ);
  const vmem_range writes = whole(to, bytes, VMEM_WRITE | VMEM_DISCARD);
  const bool from_here = space_->contains(reinterpret_cast<std::uintptr_t>(from));
  const bool to_here = space_->contains(reinterpret_cast<std::uintptr_t>(to));
  if (from_here && to_here) {
    VMEM_TRY(hold.acquire({reads, writes}));
  } else if (from_here || to_here) {
    VMEM_TRY(hold.acquire({from_here ? reads : writes}));
  }
  const auto destination = reinterpret_cast<CUdeviceptr>(to);
  const auto source = reinterpret_cast<CUdeviceptr>(from);
  VMEM_TRY(driver_->check((*driver_)->cuMemcpyAsync(destination, source, bytes, stream), "cuMemcpyAsync"));
  return hold.release();
}

Status Runtime::fill(void* pointer, std::uint32_t value, std::size_t element_bytes, std::size_t bytes,
                     vmem_stream stream) {
  if (bytes == 0) return {};
  VMEM_TRY(ensure_context());
  VMEM_TRY(locate(pointer, bytes));
  auto* at = static_cast<std::byte*>(pointer);
  while (bytes > 0) {
    const std::size_t piece = piece_bytes(at, bytes);
    PieceHold hold(*this, stream);
    VMEM_TRY(hold.acquire({whole(at, piece, VMEM_WRITE | VMEM_DISCARD)}));
    VMEM_TRY(fill_piece(reinterpret_cast<CUdeviceptr>(at), value, element_bytes, piece, stream));
    VMEM_TRY(hold.release());
    at += piece;
    bytes -= piece;
  }
  return {};
}

// The driver's memset refuses host-backed pages, its copies do not: a page served in place is filled from a filled buffer.
Status Runtime::fill_piece(CUdeviceptr address, std::uint32_t value, std::size_t element_bytes, std::size_t bytes,
                           CUstream stream) {
  const auto& driver = *driver_;
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

CUresult Runtime::fill_elements(CUdeviceptr address, std::uint32_t value, std::size_t element_bytes, std::size_t bytes,
                                CUstream stream) const {
  const auto& driver = *driver_;
  switch (element_bytes) {
    case 1:
      return driver->cuMemsetD8Async(address, static_cast<unsigned char>(value), bytes, stream);
    case 2:
      return driver->cuMemsetD16Async(address, static_cast<unsigned short>(value), bytes / 2, stream);
    default:
      return driver->cuMemsetD32Async(address, value, bytes / 4, stream);
  }
}

// Calls copy(host pointer or null, device window or 0, offset into the range, bytes, region) for the part of the range in each page.
template <class Copy>
Status Runtime::each_page(const void* pointer, std::size_t bytes, bool write, Copy&& copy) {
  VMEM_ASSIGN(const Located located, locate(pointer, bytes));
  pagetable::Region& region = *located.region;
  const std::uint64_t page_bytes = region.page_bytes();
  const std::uintptr_t base = space_->address_of(region.first.index);
  const std::uint64_t start = reinterpret_cast<std::uintptr_t>(pointer) - base;
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t offset = (start + done) % page_bytes;
    const std::uint64_t piece = std::min<std::uint64_t>(bytes - done, page_bytes - offset);
    migration::OpenPageRequest open;
    open.run = {&region, std::uint32_t((start + done) / page_bytes), 1};
    open.write = write;
    VMEM_TRY(mover_->call(open));
    // The open page keeps the region alive. Before it was opened, another thread may have freed the
    // region, and the record may describe another allocation now.
    const bool same = region.page_bytes() == page_bytes && space_->address_of(region.first.index) == base;
    Status copied;
    const bool had = !same || had_memory([&] {
      copied = copy(open.host == nullptr ? nullptr : open.host + offset,
                    open.device_window == 0 ? 0 : open.device_window + offset, done, piece, region);
    });
    migration::ClosePageRequest close;
    close.run = open.run;
    VMEM_TRY(mover_->call(close));  // whatever came of it
    if (!had) throw std::bad_alloc();
    if (!same)
      return fail(VMEM_ERROR_INVALID_POINTER,
                  fmt::format("the allocation at {} was freed by another thread meanwhile", pointer));
    VMEM_TRY(copied);
    done += piece;
  }
  return {};
}

Status Runtime::copy_device(pagetable::Region& region, void* host, CUdeviceptr window, std::size_t bytes, bool write) {
  Device& device = *devices_[std::size_t(region.device)];
  const auto& driver = *driver_;
  const std::lock_guard lock(device.io_mutex);
  // The driver looks up the frame with the rights of the current context's device, whatever the stream.
  VMEM_ASSIGN(const auto current, gpu::ScopedContext::push(driver_, device.context));
  const CUresult queued = write ? driver->cuMemcpyHtoDAsync(window, host, bytes, device.io)
                                : driver->cuMemcpyDtoHAsync(host, window, bytes, device.io);
  VMEM_TRY(driver.check(queued, write ? "cuMemcpyHtoDAsync" : "cuMemcpyDtoHAsync"));
  return driver.check(driver->cuStreamSynchronize(device.io), "cuStreamSynchronize");
}

Status Runtime::read(void* host, const void* pointer, std::size_t bytes) {
  auto* destination = static_cast<std::byte*>(host);
  return each_page(
      pointer, bytes, false,
      [&](std::byte* from, CUdeviceptr window, std::uint64_t done, std::uint64_t piece, pagetable::Region& region) {
        if (window != 0) return copy_device(region, destination + done, window, piece, false);
        if (from == nullptr) {
          std::memset(destination + done, 0, piece);  // never written: any contents will do
        } else {
          std::memcpy(destination + done, from, piece);
        }
        return Status{};
      });
}

Status Runtime::write(void* pointer, const void* host, std::size_t bytes) {
  if (const auto block = small_->find(reinterpret_cast<std::uintptr_t>(pointer))) {
    VMEM_TRY(refuse_held_block(block->base));
  }
  auto* source = static_cast<std::byte*>(const_cast<void*>(host));
  return each_page(
      pointer, bytes, true,
      [&](std::byte* to, CUdeviceptr window, std::uint64_t done, std::uint64_t piece, pagetable::Region& region) {
        if (window != 0) return copy_device(region, source + done, window, piece, true);
        std::memcpy(to, source + done, piece);
        return Status{};
      });
}

}  // namespace vmem::runtime
