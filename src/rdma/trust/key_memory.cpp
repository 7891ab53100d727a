#include "rdma/trust/key_memory.hpp"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <boost/interprocess/managed_external_buffer.hpp>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <new>

#include "base/log.hpp"

namespace vmem::rdma {
namespace {

// Reserved address space; pages are allocated on use. A connection takes about 100 KiB.
constexpr std::size_t kHeapBytes = std::size_t{256} << 20;

// Not in core dumps, zeroed in forked children. Null on lack of memory, or if madvise fails.
void* map(std::size_t bytes) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  if (::madvise(memory, bytes, MADV_DONTDUMP) == 0 && ::madvise(memory, bytes, MADV_WIPEONFORK) == 0) return memory;
  VMEM_LOG_ERROR(
      "the kernel cannot keep key memory out of core dumps and forked children (madvise: {}); use Linux 4.14 or later",
      std::strerror(errno));
  ::munmap(memory, bytes);
  return nullptr;
}

// The heap of OpenSSL. Null means lack of memory, which OpenSSL reports.
//
// In a forked child the heap is zeros, including its own bookkeeping, and a thread that the child
// does not have may hold the mutex. There allocate() returns null and release() does nothing.
class Heap {
 public:
  // The first word of the heap's memory is 1; a fork zeroes it.
  bool is_wiped() const noexcept { return alive_ != nullptr && *alive_ == 0; }
  void* allocate(std::size_t bytes) {
    if (buffer_ == nullptr || is_wiped()) return nullptr;
    const std::lock_guard lock(mutex_);
    return buffer_->allocate(bytes, std::nothrow);
  }
  void* reallocate(void* old, std::size_t bytes) {
    void* const fresh = allocate(bytes);
    if (fresh == nullptr) return nullptr;
    std::memcpy(fresh, old, std::min(bytes, size(old)));
    release(old);
    return fresh;
  }
  void release(void* memory) {
    if (memory == nullptr || is_wiped()) return;
    const std::lock_guard lock(mutex_);
    buffer_->deallocate(memory);
  }
  // Never destroyed: threads may use OpenSSL until the process ends.
  static Heap& get() {
    static Heap* const heap = new Heap;
    return *heap;
  }

 private:
  using Buffer = boost::interprocess::managed_external_buffer;
  Heap() {
    auto* const memory = static_cast<std::byte*>(map(kHeapBytes));
    if (memory == nullptr) return;
    alive_ = new (memory) volatile std::uint64_t(1);
    buffer_ = new Buffer(boost::interprocess::create_only, memory + kAliveBytes, kHeapBytes - kAliveBytes);
  }
  std::size_t size(void* memory) {
    const std::lock_guard lock(mutex_);
    return buffer_->get_segment_manager()->size(memory);
  }
  static constexpr std::size_t kAliveBytes = 64;  // keeps the buffer aligned
  std::mutex mutex_;
  const volatile std::uint64_t* alive_ = nullptr;
  Buffer* buffer_ = nullptr;
};

void* allocate(std::size_t bytes, const char*, int) { return bytes == 0 ? nullptr : Heap::get().allocate(bytes); }
void* reallocate(void* old, std::size_t bytes, const char* file, int line) {
  if (old == nullptr) return allocate(bytes, file, line);
  if (bytes != 0) return Heap::get().reallocate(old, bytes);
  Heap::get().release(old);
  return nullptr;
}
void release(void* memory, const char*, int) { Heap::get().release(memory); }

}  // namespace

KeyMemory::KeyMemory(std::size_t bytes) {
  void* const memory = map(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  bytes_ = {static_cast<unsigned char*>(memory), bytes};
}

KeyMemory::~KeyMemory() {
  if (bytes_.empty()) return;
  OPENSSL_cleanse(bytes_.data(), bytes_.size());
  ::munmap(bytes_.data(), bytes_.size());
}

Result<KeyText> KeyText::read(int descriptor) {
  KeyText read;
  for (;;) {
    const auto left = read.memory_.bytes().subspan(read.bytes_);
    const ssize_t got = ::read(descriptor, left.data(), left.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail(VMEM_ERROR_INVALID_OPTION, std::strerror(errno), errno);
    read.bytes_ += static_cast<std::size_t>(got);
    if (read.bytes_ > kMostBytes)
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("has more than {} bytes", kMostBytes));
    if (got == 0) return read;
  }
}

bool keep_openssl_to_this_process() {
  // At thread exit OpenSSL frees its per-thread state, also in a child, where that state is in the
  // wiped heap. So a thread frees the state before it forks; OpenSSL creates it again on the next
  // use.
  return CRYPTO_set_mem_functions(allocate, reallocate, release) == 1 &&
         ::pthread_atfork(&OPENSSL_thread_stop, nullptr, nullptr) == 0;
}

bool openssl_is_wiped() noexcept { return Heap::get().is_wiped(); }

}  // namespace vmem::rdma
