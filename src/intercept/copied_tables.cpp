#include "intercept/copied_tables.hpp"

#include <algorithm>

#include "intercept/hidden.hpp"
#include "intercept/hook_table.hpp"
#include "intercept/pinned.hpp"
#include "intercept/references.hpp"

namespace vmem::intercept {

using runtime::Runtime;

namespace {

// PyTorch packs a table together with the work list of each thread block: a megabyte for tensors of
// 256 MiB. Of larger copies only the beginning is searched: most are data, and the search of a MiB
// takes 30 us, more than the copy itself.
constexpr std::size_t kSearchedWhole = 1 << 20, kSearchedOfLarger = 64 << 10, kSearchedOfWriteCombined = 4 << 10;

std::size_t searched(const void* from, std::size_t bytes) {
  if (write_combined_memory().holds(reinterpret_cast<std::uintptr_t>(from)))
    return std::min(bytes, kSearchedOfWriteCombined);
  return bytes <= kSearchedWhole ? bytes : kSearchedOfLarger;
}

// Whether rows and slices follow each other without gaps.
bool is_dense(const CopySide& side, const CopyExtent& extent) {
  return (extent.rows == 1 || side.pitch == extent.width) &&
         (extent.slices == 1 || (side.pitch == extent.width && side.height == extent.rows));
}

}  // namespace

void note_pointers(Runtime& runtime, const CopySide& target, const CopySide& from, const CopyExtent& extent) {
  const CUdeviceptr to = target.start;
  if (from.start == 0 || to == 0) return;
  thread_local References references;
  references.begin(runtime);
  const std::size_t bytes = extent.bytes(), looked_at = searched(pointer_to(from.start), bytes);
  std::size_t left = looked_at;
  for (std::size_t slice = 0; slice < extent.slices && left > 0; ++slice) {
    for (std::size_t row = 0; row < extent.rows && left > 0; ++row) {
      const std::size_t part = std::min(left, extent.width);
      references.add_words(pointer_to(from.row(row, slice)), part);
      left -= part;
    }
  }
  if (!ours(&runtime, to)) {
    if (references.addresses().empty()) return;
    CUmemorytype type = CU_MEMORYTYPE_HOST;
    const CUresult known = runtime.driver()->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, to);
    if (known != CUDA_SUCCESS || type == CU_MEMORYTYPE_HOST) return;  // host to host
    for (const std::uintptr_t base : runtime.addresses().allocations_among(references.addresses()))
      keep(runtime, base, "memory that a kernel's variables may point to");
    return;
  }
  const auto block = runtime.addresses().allocation_at(to);
  runtime::PointerTables* const tables = runtime.launches().pointer_tables();
  if (!block || tables == nullptr) return;
  const bool small = runtime.addresses().is_small(to);
  const std::uintptr_t table = small ? block->base : to;
  const auto targets = runtime.addresses().allocations_among(references.addresses());
  // Gaps between rows keep their old words, and a captured copy runs later: add to the table then.
  if (is_dense(target, extent) && looked_at == bytes && table == to &&
      captures().load(std::memory_order_relaxed) == 0) {
    tables->write(table, targets, bytes);
  } else {
    tables->believe(table, targets);
  }
}

void note_tables(const Runtime& runtime, const CopySide& to, const CopySide& from, const CopyExtent& extent) {
  if (!ours(&runtime, to.start) || !ours(&runtime, from.start)) return;
  const auto target = runtime.addresses().allocation_at(to.start),
             source = runtime.addresses().allocation_at(from.start);
  runtime::PointerTables* const tables = runtime.launches().pointer_tables();
  if (!target || !source || tables == nullptr) return;
  const bool to_small = runtime.addresses().is_small(to.start), from_small = runtime.addresses().is_small(from.start);
  const auto copy = [&](std::size_t row, std::size_t slice, std::size_t bytes) {
    tables->copy({to_small ? target->base : to.row(row, slice), to_small},
                 {from_small ? source->base : from.row(row, slice), from_small}, bytes);
  };
  if ((is_dense(to, extent) && is_dense(from, extent)) || (to_small && from_small)) return copy(0, 0, extent.bytes());
  const CUdeviceptr end = from.row(extent.rows - 1, extent.slices - 1) + extent.width;
  if (!tables->any_within(from_small ? source->base : from.start, from_small ? 1 : end - from.start)) return;
  CUdeviceptr last = 0;
  for (std::size_t slice = 0; slice < extent.slices; ++slice) {
    for (std::size_t row = 0; row < extent.rows; ++row) {
      // Any row of a small source stands for its whole table. Launches look kAround around an
      // address, so one place each kAround is enough.
      const CUdeviceptr at = to.row(row, slice);
      if (from_small && last != 0 && at - last < runtime::PointerTables::kAround) continue;
      last = at;
      copy(row, slice, extent.width);
    }
  }
}
void note_tables(const Runtime& runtime, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  note_tables(runtime, CopySide{.start = to}, CopySide{.start = from}, {.width = bytes});
}

void note_pointers(Runtime& runtime, CUdeviceptr to, const void* from, std::size_t bytes) {
  note_pointers(runtime, CopySide{.start = to}, CopySide{.start = address_of(from)}, {.width = bytes});
}

void note_pointers_if_host(Runtime& runtime, const CopySide& to, const CopySide& from, const CopyExtent& extent) {
  if (ours(&runtime, from.start)) return;
  CUmemorytype type = CU_MEMORYTYPE_HOST;
  const CUresult known = runtime.driver()->cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, from.start);
  if (known == CUDA_SUCCESS ? type == CU_MEMORYTYPE_HOST : known == CUDA_ERROR_INVALID_VALUE)
    note_pointers(runtime, to, from, extent);
}
void note_pointers_if_host(Runtime& runtime, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  note_pointers_if_host(runtime, CopySide{.start = to}, CopySide{.start = from}, {.width = bytes});
}

}  // namespace vmem::intercept
