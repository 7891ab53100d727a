#include "runtime/suballocator/cache_registry.hpp"

#include <algorithm>
#include <utility>

#include "base/process.hpp"

namespace vmem::runtime {

thread_local CacheRegistry::Bindings CacheRegistry::bindings_;

std::uint64_t unique_number() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

CacheRegistry::CacheRegistry(std::function<void(ThreadCache&)> retire)
    : number_(unique_number()), retire_(std::move(retire)), link_(std::make_shared<Link>()) {
  link_->registry = this;
}

CacheRegistry::~CacheRegistry() {
  // Waits for threads that are retiring their caches.
  const std::lock_guard lock(link_->mutex);
  link_->registry = nullptr;
}

CacheRegistry::Bindings::~Bindings() {
  current_ = {0, nullptr, true};
  if (process::forked()) return;  // the memory is the parent's, and the mutexes may be locked
  for (const Binding& binding : all) {
    const std::lock_guard lock(binding.link->mutex);
    if (binding.link->registry != nullptr) binding.link->registry->detach(*binding.cache);
  }
}

ThreadCache* CacheRegistry::attach() {
  if (current_.ending) return nullptr;
  // Constructed before bindings_, whose destructor marks streams by the number.
  (void)process::thread_number();
  auto& all = bindings_.all;
  if (const auto bound = std::ranges::find(all, number_, &Binding::registry); bound != all.end()) {
    current_ = {number_, bound->cache, false};
    return bound->cache;
  }
  // Drops bindings to ended registries, so that repeated starts in one thread do not accumulate
  // them.
  std::erase_if(all, [](const Binding& binding) {
    const std::lock_guard lock(binding.link->mutex);
    return binding.link->registry == nullptr;
  });
  ThreadCache* cache = nullptr;
  {
    const std::lock_guard lock(mutex_);
    cache = caches_.emplace_back(std::make_unique<ThreadCache>(unique_number())).get();
  }
  all.push_back({number_, link_, cache});
  current_ = {number_, cache, false};
  return cache;
}

void CacheRegistry::detach(ThreadCache& cache) {
  // Before the cache leaves the list: until then other threads may take from it.
  retire_(cache);
  const std::lock_guard lock(mutex_);
  account(cache.live_bytes());
  std::erase_if(caches_, [&](const auto& candidate) { return candidate.get() == &cache; });
}

std::int64_t CacheRegistry::live_bytes() const {
  const std::lock_guard lock(mutex_);
  std::int64_t bytes = live_of_no_cache_.load(std::memory_order_relaxed);
  for (const auto& cache : caches_) bytes += cache->live_bytes();
  return bytes;
}

std::size_t CacheRegistry::bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& cache : caches_) {
    const std::lock_guard cache_lock(cache->mutex);
    bytes += sizeof(ThreadCache) + cache->shelves.size() * sizeof(Shelf);
  }
  return bytes;
}

}  // namespace vmem::runtime
