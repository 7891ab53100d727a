// For driver decorators: each entry of their table is a static function with its own index.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "gpu/driver_table.hpp"

namespace vmem::gpu {

#define VMEM_INDEX(name) index_of_##name,
enum DriverFunction : std::size_t {
  VMEM_DRIVER_REQUIRED(VMEM_INDEX) VMEM_DRIVER_OPTIONAL(VMEM_INDEX) kDriverFunctions
};
#undef VMEM_INDEX

// Base names ("cuMemAlloc"). The table's members have the versioned names of cuda.h's macros.
#define VMEM_TEXT(name) #name,
inline constexpr std::array<std::string_view, kDriverFunctions> kDriverFunctionNames{
    VMEM_DRIVER_REQUIRED(VMEM_TEXT) VMEM_DRIVER_OPTIONAL(VMEM_TEXT)};
#undef VMEM_TEXT

// Returns `table` with Wrapper<entry, index, entry type>::call for each function that `inner` has.
// VMEM_DRIVER_INTERCEPTION functions keep their value in `table`.
template <template <auto Entry, DriverFunction Function, class Type> class Wrapper>
DriverTable wrapped(const DriverTable& inner, DriverTable table) {
#define VMEM_WRAP(name) \
  if (inner.name) table.name = &Wrapper<&DriverTable::name, index_of_##name, decltype(inner.name)>::call;
  VMEM_DRIVER_REQUIRED(VMEM_WRAP)
  VMEM_DRIVER_OPTIONAL(VMEM_WRAP)
#undef VMEM_WRAP
  return table;
}

}  // namespace vmem::gpu
