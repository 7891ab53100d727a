// Copies, fills and host access, in pieces that never cross a page: a page lies in one place, and
// the driver's copies do not span device and host memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.hpp"
#include "runtime/assembly/devices.hpp"
#include "runtime/explicit/hit_path.hpp"

namespace vmem::runtime {

// Any thread. Errors: INVALID_POINTER, INVALID_RANGE, and those of HitPath::acquire.
class Copies {
 public:
  struct Parts {
    const gpu::Driver& driver;
    const Devices& devices;
    const pagetable::AddressSpace& space;
    migration::Mover& mover;
    const ThreadSlots& slots;
    const Suballocator& small;
    const AddressResolver& addresses;
    HitPath& hit_path;
  };
  explicit Copies(const Parts& parts) : parts_(parts) {}

  // In the order of the stream. Either side may be memory that is not vmem's.
  Status copy(void* to, const void* from, std::size_t bytes, vmem_stream stream);
  // Sets each element of 1, 2 or 4 bytes to `value`; `bytes` is the total length.
  Status fill(void* pointer, std::uint32_t value, std::size_t element_bytes, std::size_t bytes, vmem_stream stream);
  // Between host memory and vmem's; complete on return.
  Status read(void* host, const void* pointer, std::size_t bytes);
  Status write(void* pointer, const void* host, std::size_t bytes);

 private:
  enum class Direction { to_host, to_vmem };
  // One page's part of a range, opened for the CPU. Without an address its bytes are unwritten.
  struct OpenPiece {
    std::byte* host = nullptr;
    CUdeviceptr window = 0;
    std::uint64_t offset = 0;  // in the range
    std::uint64_t bytes = 0;
    pagetable::Region* region = nullptr;
  };
  Status copy_piece(void* to, const void* from, std::size_t bytes, CUstream stream);
  CUresult fill_elements(CUdeviceptr address, std::uint32_t value, std::size_t element_bytes, std::size_t bytes,
                         CUstream stream) const;
  Status fill_piece(CUdeviceptr address, std::uint32_t value, std::size_t element_bytes, std::size_t bytes,
                    CUstream stream);
  std::size_t piece_bytes(const void* pointer, std::size_t bytes) const;
  template <class Copy>
  Status each_page(const void* pointer, std::size_t bytes, Direction direction, Copy&& copy);
  Status copy_device(const OpenPiece& piece, void* host, Direction direction);

  const Parts parts_;
};

}  // namespace vmem::runtime
