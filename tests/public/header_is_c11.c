/* vmem.h is C: compiled as C11 with all warnings as errors, and every constant usable there. */
#include "vmem/vmem.h"

vmem_range vmem_test_range_in_c(void* ptr, size_t bytes);
vmem_range vmem_test_range_in_c(void* ptr, size_t bytes) {
  const vmem_range range = {.ptr = ptr, .bytes = bytes, .access = VMEM_WRITE | VMEM_DISCARD};
  return range;
}
