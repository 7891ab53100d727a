// All thread caches, and the calling thread's. A thread finds its cache through a thread-local
// pointer tagged with the registry's number. Numbers are never reused, so a thread never reaches
// the cache of a destroyed registry. When a thread ends, its cache is handed to `retire`, unless
// the registry ended first.
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

// A number never used before by a thread, registry or ended stream of this process.
std::uint64_t unique_number() noexcept;

class CacheRegistry {
 public:
  // `retire` empties a cache; called on the cache's thread as it ends.
  explicit CacheRegistry(std::function<void(ThreadCache&)> retire);
  ~CacheRegistry();
  CacheRegistry(const CacheRegistry&) = delete;
  CacheRegistry& operator=(const CacheRegistry&) = delete;

  // The calling thread's cache; null if the thread is ending and has none any more.
  ThreadCache* mine() {
    if (current_.registry == number_) [[likely]]
      return current_.cache;
    return attach();
  }
  // Counts bytes allocated (freed, if negative) by a thread without a cache.
  void account(std::int64_t live_bytes) noexcept { live_of_no_cache_.fetch_add(live_bytes, std::memory_order_relaxed); }
  std::int64_t live_bytes() const;
  std::size_t bytes() const;

  // Threads can neither attach nor detach meanwhile.
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
  // Shared by the registry and its threads; `registry` is null after the registry's end.
  struct Link {
    std::mutex mutex;  // taken before all other mutexes
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

  // Trivially destructible, so that destructors of other thread-local variables can still free
  // memory.
  static inline constinit thread_local Current current_{0, nullptr, false};
  static thread_local Bindings bindings_;

  const std::uint64_t number_;
  const std::function<void(ThreadCache&)> retire_;
  const std::shared_ptr<Link> link_;
  std::atomic<std::int64_t> live_of_no_cache_{0};

  mutable std::mutex mutex_;  // taken before a cache's mutex
  std::vector<std::unique_ptr<ThreadCache>> caches_;
};

}  // namespace vmem::runtime
