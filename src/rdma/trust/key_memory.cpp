#include "rdma/trust/key_memory.hpp"

#include <openssl/crypto.h>
#include <sys/mman.h>

#include <algorithm>
#include <boost/interprocess/managed_external_buffer.hpp>
#include <cstring>
#include <mutex>
#include <new>

namespace vmem::rdma {
namespace {

// Address space; pages are taken as they are used. A connection takes about 100 KiB.
constexpr std::size_t kHeapBytes = std::size_t{256} << 20;

void* map(std::size_t bytes) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  // Kernels without one of these leave the memory as it is otherwise.
  (void)::madvise(memory, bytes, MADV_DONTDUMP);
  return memory;
}

// What OpenSSL allocates. Null stands for lack of memory, which OpenSSL reports.
class Heap {
 public:
  void* allocate(std::size_t bytes) {
    if (buffer_ == nullptr) return nullptr;
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
    if (memory == nullptr) return;
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
    void* const memory = map(kHeapBytes);
    if (memory != nullptr) buffer_ = new Buffer(boost::interprocess::create_only, memory, kHeapBytes);
  }
  std::size_t size(void* memory) {
    const std::lock_guard lock(mutex_);
    return buffer_->get_segment_manager()->size(memory);
  }
  std::mutex mutex_;
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
  (void)::madvise(memory, bytes, MADV_WIPEONFORK);
  bytes_ = {static_cast<unsigned char*>(memory), bytes};
}

KeyMemory::~KeyMemory() {
  if (bytes_.empty()) return;
  OPENSSL_cleanse(bytes_.data(), bytes_.size());
  ::munmap(bytes_.data(), bytes_.size());
}

bool keep_openssl_out_of_core_dumps() { return CRYPTO_set_mem_functions(allocate, reallocate, release) == 1; }

}  // namespace vmem::rdma
