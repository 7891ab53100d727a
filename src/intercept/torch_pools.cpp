#include "intercept/torch_pools.hpp"

#include <algorithm>
#include <optional>

#include "intercept/hook.hpp"

namespace vmem::intercept {
namespace {

// So that a block serves the next request of about its size.
std::size_t rounded(std::size_t bytes) {
  const std::size_t unit = bytes < (std::size_t{1} << 20) ? 512 : std::size_t{2} << 20;
  return (bytes + unit - 1) / unit * unit;
}

// Our own driver calls must not end the capture that the pool is for.
class Relaxed {
 public:
  explicit Relaxed(const gpu::Driver& driver) : driver_(driver) { exchange(); }
  ~Relaxed() { exchange(); }
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  void exchange() { (void)driver_->cuThreadExchangeStreamCaptureMode(&mode_); }
  const gpu::Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace

TorchPools& torch_pools() {
  static auto* pools = new TorchPools;
  return *pools;
}

void TorchPools::begin(const Key& key, Filter filter) {
  const std::lock_guard lock(mutex_);
  ++pools_[key].uses;
  active_.push_back({key, std::move(filter)});
}

void TorchPools::end(const Key& key) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(active_, key, &Active::key);
  if (found != active_.end()) active_.erase(found);
}

std::optional<Result<void*>> TorchPools::allocate(runtime::Runtime& runtime, std::size_t bytes, int device,
                                                  CUstream stream) {
  const std::lock_guard lock(mutex_);
  const auto active = std::ranges::find_if(
      active_, [&](const Active& each) { return each.key.device == device && (!each.filter || each.filter(stream)); });
  if (active == active_.end()) return std::nullopt;
  const Relaxed relaxed(runtime.driver());
  bytes = rounded(bytes);
  auto& free = pools_[active->key].free[{bytes, stream}];
  if (!free.empty()) {
    void* pointer = free.back();
    free.pop_back();
    blocks_[pointer].live = true;
    runtime.set_idle(pointer, false);
    return pointer;
  }
  auto pointer = runtime.allocate_undeclared(bytes, device, stream);
  if (pointer) blocks_[*pointer] = {active->key, bytes, true};
  return pointer;
}

bool TorchPools::free(runtime::Runtime& runtime, void* pointer, CUstream stream) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(pointer);
  if (found == blocks_.end()) return false;
  const auto pool = pools_.find(found->second.pool);
  if (pool == pools_.end()) {
    blocks_.erase(found);
    return false;
  }
  const Relaxed relaxed(runtime.driver());
  found->second.live = false;
  pool->second.free[{found->second.bytes, stream}].push_back(pointer);
  // Between two replays its bytes are of no use.
  runtime.set_idle(pointer, true);
  return true;
}

Status TorchPools::release(runtime::Runtime& runtime, const Key& key) {
  const std::lock_guard lock(mutex_);
  const auto pool = pools_.find(key);
  if (pool == pools_.end() || --pool->second.uses > 0) return {};
  const auto free = std::move(pool->second.free);
  pools_.erase(pool);
  // The graph may have been replayed on any stream. While another capture is under way nothing can be waited for: then the blocks
  // follow the streams they were allocated on, as those of a pool that ends early do.
  const bool waited = active_.empty() && runtime.driver()->cuCtxSynchronize() == CUDA_SUCCESS;
  Status outcome;
  for (const auto& [kind, pointers] : free) {
    for (void* pointer : pointers) {
      blocks_.erase(pointer);
      runtime.set_idle(pointer, false);
      auto freed = runtime.free_undeclared(pointer, waited ? std::nullopt : std::optional<vmem_stream>(kind.second));
      if (!freed) outcome = freed;
    }
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
