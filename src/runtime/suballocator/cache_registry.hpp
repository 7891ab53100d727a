// Which cache is the calling thread's, and which caches there are. A thread's cache is found through a thread-local pointer that
// is valid only for one registry's number; numbers are not used again, so a thread never reaches the cache of a registry that is
// gone. When a thread ends, its cache is handed to `retire`, unless the registry went first.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/suballocator/thread_cache.hpp"

namespace vmem::runtime {

// A number that no thread, registry or ended stream of this process has had.
std::uint64_t unique_number() noexcept;

class CacheRegistry {
 public:
  // `retire` empties a cache; called in the cache's thread, while that ends.
  explicit CacheRegistry(std::function<void(ThreadCache&)> retire);
  ~CacheRegistry();
  CacheRegistry(const CacheRegistry&) = delete;
  CacheRegistry& operator=(const CacheRegistry&) = delete;

  // The calling thread's cache; null when the thread is ending and has none any more.
  ThreadCache* mine() {
    if (current_.registry == number_) [[likely]]
      return current_.cache;
    return attach();
  }
  // Counts bytes allocated (or freed, if negative) where there is no cache.
  void account(std::int64_t live_bytes) noexcept { live_of_no_cache_.fetch_add(live_bytes, std::memory_order_relaxed); }
  std::int64_t live_bytes() const;
  std::size_t bytes() const;

  // Threads neither come nor go meanwhile.
  template <class Act>
  void for_each(Act act) {
    const std::lock_guard lock(mutex_);
    for (const auto& cache : caches_) act(*cache);
  }

 private:
  struct Current {
    std::uint64_t registry;
    ThreadCache* cache;
    bool ending;
  };
  // Shared by the registry and the threads it serves; null when the registry is gone.
  struct Link {
    std::mutex mutex;  // taken first
    CacheRegistry* registry;
  };
  struct Binding {
    std::uint64_t registry;
    std::shared_ptr<Link> link;
    ThreadCache* cache;
  };
  struct Bindings {
    std::vector<Binding> all;
    ~Bindings();
  };
  ThreadCache* attach();
  void detach(ThreadCache& cache);

  // Trivial, so that it is still there when the destructors of other thread-local variables free memory.
  static inline constinit thread_local Current current_{0, nullptr, false};
  static thread_local Bindings bindings_;

  const std::uint64_t number_;
  const std::function<void(ThreadCache&)> retire_;
  const std::shared_ptr<Link> link_;
  std::atomic<std::int64_t> live_of_no_cache_{0};

  mutable std::mutex mutex_;  // taken before a cache's
  std::vector<std::unique_ptr<ThreadCache>> caches_;
};

}  // namespace vmem::runtime
