#include "runtime/remote/lent_memory.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.hpp"
#include "base/signals_blocked.hpp"
#include "base/sizes.hpp"
#include "pagetable/types.hpp"

namespace vmem::runtime {

Result<std::unique_ptr<LentMemory>> LentMemory::create(std::uint64_t bytes) {
  void* const begin = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED)
    return fail(VMEM_ERROR_OUT_OF_MEMORY,
                fmt::format("{} of host memory, to lend or for the way to disks and HBM: the kernel gives none: {}",
                            format_bytes(bytes), std::strerror(errno)),
                errno);
  (void)::madvise(begin, bytes, MADV_HUGEPAGE);  // for sequential copies and checksums
  std::unique_ptr<LentMemory> memory(new LentMemory({static_cast<std::byte*>(begin), bytes}));
  const SignalsBlocked blocked;
  memory->thread_ = std::jthread([&memory = *memory](const std::stop_token& stop) { memory.prefault(stop); });
  return memory;
}

LentMemory::~LentMemory() {
  thread_ = {};
  if (!leave_mapped_) ::munmap(bytes_.data(), bytes_.size());
}

// In small pieces, since other threads that map memory wait meanwhile. Contents stay as they are.
void LentMemory::prefault(const std::stop_token& stop) {
  ::prctl(PR_SET_NAME, "vmem-lent");
  for (std::size_t at = 0; at < bytes_.size() && !stop.stop_requested();) {
    const std::size_t size = std::min<std::size_t>(pagetable::kGranuleBytes, bytes_.size() - at);
    if (::madvise(bytes_.data() + at, size, MADV_POPULATE_WRITE) != 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      // Linux before 5.14 has no such call.
      VMEM_LOG_INFO("{} of {} of the daemon's memory are not prefaulted; the first store to each page is slower: {}",
                    format_bytes(bytes_.size() - at), format_bytes(bytes_.size()), std::strerror(errno));
      return;
    }
    at += size;
    ready_bytes_.store(at, std::memory_order_relaxed);
  }
}

}  // namespace vmem::runtime
