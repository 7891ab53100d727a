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

namespace vmem::rdma {
namespace {

// Address space; pages are taken as they are used. A connection takes about 100 KiB.
constexpr std::size_t kHeapBytes = std::size_t{256} << 20;

// Not in core dumps, and zeros in forked children.
void* map(std::size_t bytes) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  // Kernels without one of these leave the memory as it is otherwise.
  (void)::madvise(memory, bytes, MADV_DONTDUMP);
  (void)::madvise(memory, bytes, MADV_WIPEONFORK);
  return memory;
}

// What OpenSSL allocates. Null stands for lack of memory, which OpenSSL reports.
//
// In a forked child the heap is zeros, its own bookkeeping included, and a thread that the child does not have
// may hold the mutex. There nothing is allocated, and what is given back stays where it is.
class Heap {
 public:
  // The first word of the heap's memory tells, since the fork wipes it too.
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
  static constexpr std::size_t kAliveBytes = 64;  // keeps what follows aligned
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
  // What OpenSSL keeps of a thread ends with it, also in a child, where that is in the wiped heap. A thread
  // that forks gives it up before; OpenSSL makes it again where the thread goes on.
  return CRYPTO_set_mem_functions(allocate, reallocate, release) == 1 &&
         ::pthread_atfork(&OPENSSL_thread_stop, nullptr, nullptr) == 0;
}

bool openssl_is_wiped() noexcept { return Heap::get().is_wiped(); }

}  // namespace vmem::rdma
