// Pointer tables moved by copies. Later launches reach the tables' targets without naming them
// (runtime/launch/tables/pointer_tables.hpp).
#pragma once

#include <cuda.h>

#include <cstddef>

#include "runtime/runtime.hpp"

namespace vmem::intercept {

inline void* pointer_to(CUdeviceptr address) { return reinterpret_cast<void*>(address); }
inline CUdeviceptr address_of(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

// Rows of `width` bytes each, in slices; a plain copy is one row.
struct CopyExtent {
  std::size_t width = 0;
  std::size_t rows = 1;
  std::size_t slices = 1;
  std::size_t bytes() const { return width * rows * slices; }
};

// One side of a copy with rows. Array memory is never vmem's and has no known address.
struct CopySide {
  CUdeviceptr start = 0;
  bool array = false;
  std::size_t pitch = 0;     // bytes from row to row
  std::size_t height = 0;    // rows from slice to slice
  std::size_t x = 0, y = 0;  // start within the first row, and within the first slice
  bool further = false;      // rows or slices precede the start
  bool sliced = false;       // slices precede the start
  bool possible = true;      // the driver would accept this side
  bool from_host = false;    // declared as host memory; with unified addressing nothing is declared
  CUdeviceptr row(std::size_t row, std::size_t slice) const { return start + (slice * height + row) * pitch; }
};

// Notes pointer tables that the CPU filled, in a copy from the host. If the target is not vmem's,
// such as the variables of a kernel's module, every later launch of that kernel can use the table
// without naming it, so the table's targets are kept in place.
void note_pointers(runtime::Runtime& runtime, const CopySide& to, const CopySide& from, const CopyExtent& extent);
void note_pointers(runtime::Runtime& runtime, CUdeviceptr to, const void* from, std::size_t bytes);
// The same for an undeclared direction: only if the driver does not know `from`, or knows it as
// host memory.
void note_pointers_if_host(runtime::Runtime& runtime, const CopySide& to, const CopySide& from,
                           const CopyExtent& extent);
void note_pointers_if_host(runtime::Runtime& runtime, CUdeviceptr to, CUdeviceptr from, std::size_t bytes);
// Notes pointer tables moved by a copy between vmem allocations.
void note_tables(const runtime::Runtime& runtime, const CopySide& to, const CopySide& from, const CopyExtent& extent);
void note_tables(const runtime::Runtime& runtime, CUdeviceptr to, CUdeviceptr from, std::size_t bytes);

}  // namespace vmem::intercept
