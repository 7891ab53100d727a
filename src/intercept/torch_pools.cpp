#include "intercept/torch_pools.hpp"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "gpu/handles.hpp"
#include "intercept/hook.hpp"

namespace vmem::intercept {
namespace {

// Rounds sizes so that a block can serve later requests of similar size.
std::size_t rounded(std::size_t bytes) {
  const std::size_t unit = bytes < (std::size_t{1} << 20) ? 512 : std::size_t{2} << 20;
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

TorchPools& torch_pools() {
  static auto* pools = new TorchPools;
  return *pools;
}

void TorchPools::begin(const Key& key, Filter filter) {
  ever_used_.store(true, std::memory_order_release);
  const std::lock_guard lock(mutex_);
  try {
    Pool& pool = pools_[key];
    active_.reserve(active_.size() + 1);
    ++pool.uses;
  } catch (const std::bad_alloc&) {
    ++failed_begins_[std::size_t(key.device) % failed_begins_.size()];
    throw;
  }
  active_.push_back({key, std::move(filter)});
}

void TorchPools::end(const Key& key) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(active_, key, &Active::key);
  if (found != active_.end()) {
    active_.erase(found);
  } else if (auto& failed = failed_begins_[std::size_t(key.device) % failed_begins_.size()]; failed != 0) {
    --failed;
  }
}

std::optional<Result<void*>> TorchPools::allocate(runtime::Runtime& runtime, std::size_t bytes, int device,
                                                  CUstream stream) {
  if (!ever_used_.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  if (failed_begins_[std::size_t(device) % failed_begins_.size()] != 0)
    return fail(VMEM_ERROR_OUT_OF_MEMORY, "host memory was lacking when the pool of a graph was begun");
  const auto active = std::ranges::find_if(
      active_, [&](const Active& each) { return each.key.device == device && (!each.filter || each.filter(stream)); });
  if (active == active_.end()) return std::nullopt;
  const gpu::RelaxedCapture relaxed(runtime.driver());
  bytes = rounded(bytes);
  auto& free = pools_[active->key].free[{bytes, stream}];
  if (!free.empty()) {
    void* pointer = free.back();
    free.pop_back();
    blocks_[pointer].live = true;
    return pointer;
  }
  std::map<void*, Block> one{{nullptr, {active->key, bytes, true}}};
  auto block = one.extract(one.begin());
  auto pointer = runtime.blocks().allocate(bytes, device, stream);
  if (!pointer) return pointer;
  blocks_.erase(*pointer);  // of a pool that is gone
  block.key() = *pointer;
  blocks_.insert(std::move(block));
  return pointer;
}

bool TorchPools::free(void* pointer, CUstream stream) {
  if (!ever_used_.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(pointer);
  if (found == blocks_.end()) return false;
  const auto pool = pools_.find(found->second.pool);
  if (pool == pools_.end()) {
    blocks_.erase(found);
    return false;
  }
  // Contents stay valid: another graph of the pool may read this graph's output.
  if (found->second.shared) {
    pool->second.used_up.push_back(pointer);
  } else {
    pool->second.free[{found->second.bytes, stream}].push_back(pointer);
  }
  found->second.live = false;
  return true;
}

void TorchPools::record_stream(void* pointer) {
  if (!ever_used_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(pointer);
  if (found != blocks_.end()) found->second.shared = true;
}

Status TorchPools::release(runtime::Runtime& runtime, const Key& key) {
  std::vector<std::pair<int, void*>> ended;
  {
    const std::lock_guard lock(mutex_);
    const auto pool = pools_.find(key);
    if (pool != pools_.end() && --pool->second.uses <= 0) {
      for (const auto& [kind, pointers] : pool->second.free) {
        for (void* pointer : pointers) parked_.push_back({key.device, pointer});
      }
      for (void* pointer : pool->second.used_up) parked_.push_back({key.device, pointer});
      pools_.erase(pool);
    }
    // The graph may have been replayed on any stream. During a capture no wait is possible: the
    // next release frees the blocks.
    if (!active_.empty()) return {};
    ended = std::exchange(parked_, {});
    for (const auto& [device, pointer] : ended) blocks_.erase(pointer);
  }
  // Without the lock: the device may wait for work from another thread, and that thread may
  // allocate.
  const gpu::RelaxedCapture relaxed(runtime.driver());
  std::map<int, bool> idle;  // devices already synchronized, and whether that succeeded
  Status outcome;
  for (const auto& [device, pointer] : ended) {
    const auto [waited, first] = idle.try_emplace(device);
    if (first) waited->second = runtime.devices().synchronize(device).has_value();
    if (waited->second) {
      const Status freed = runtime.blocks().free(pointer, std::optional<vmem_stream>());
      if (freed) continue;
      outcome = freed;
      if (freed.error().status == VMEM_ERROR_INVALID_POINTER) continue;  // the program freed it
    }
    // The next release tries again.
    const std::lock_guard lock(mutex_);
    parked_.push_back({device, pointer});
  }
  return outcome;
}

bool TorchPools::holds(const Key& key, std::span<void* const> pointers) const {
  const std::lock_guard lock(mutex_);
  const auto live =
      std::ranges::count_if(blocks_, [&](const auto& each) { return each.second.live && each.second.pool == key; });
  return std::size_t(live) == pointers.size() && std::ranges::all_of(pointers, [&](void* pointer) {
           const auto found = blocks_.find(pointer);
           return found != blocks_.end() && found->second.live && found->second.pool == key;
         });
}

}  // namespace vmem::intercept
