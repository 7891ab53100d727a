#include "pagetable/lazy_array.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace vmem::pagetable {

Result<void*> map_lazily(std::size_t bytes) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory != MAP_FAILED) return memory;
  return fail(VMEM_ERROR_ADDRESS_SPACE,
              fmt::format("cannot reserve {} bytes for the page table: {}", bytes, std::strerror(errno)), errno);
}

void unmap_lazily(void* memory, std::size_t bytes) noexcept { ::munmap(memory, bytes); }

}  // namespace vmem::pagetable
