// Private pools: what PyTorch allocates while it captures a CUDA graph. The graph uses these blocks whenever it is replayed, so one that
// is freed serves nobody but the same pool, until PyTorch gives the pool up.
#pragma once

#include <cuda.h>

#include <atomic>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.hpp"

namespace vmem::runtime {
class Runtime;
}

namespace vmem::intercept {

class TorchPools {
 public:
  struct Key {
    int device = 0;
    std::pair<std::uint64_t, std::uint64_t> id;  // c10::MempoolId_t
    auto operator<=>(const Key&) const = default;
  };
  using Filter = std::function<bool(CUstream)>;

  // Allocations on the device's streams that the filter accepts go to the pool, until `end`. A pool that is begun so often is
  // released as often.
  void begin(const Key& key, Filter filter);
  void end(const Key& key);
  // The block is used by another stream, too: the pool does not give it out again.
  void record_stream(void* pointer);
  // Gives back what is free in it when that was the last user, once its device is idle and no capture is under way; what is still
  // alive becomes an allocation like any other.
  Status release(runtime::Runtime& runtime, const Key& key);

  // Nothing: the allocation belongs to no pool.
  std::optional<Result<void*>> allocate(runtime::Runtime& runtime, std::size_t bytes, int device, CUstream stream);
  // False: the block is not a pool's.
  bool free(void* pointer, CUstream stream);
  // Whether the live blocks of the pool are exactly these.
  bool holds(const Key& key, std::span<void* const> pointers) const;

 private:
  struct Block {
    Key pool;
    std::size_t bytes = 0;
    bool live = false;
    bool shared = false;
  };
  struct Pool {
    int uses = 0;
    std::map<std::pair<std::size_t, CUstream>, std::vector<void*>> free;
    std::vector<void*> used_up;  // free, and not given out again
  };
  struct Active {
    Key key;
    Filter filter;
  };
  // Most programs never have a pool, and allocate often.
  std::atomic<bool> ever_used_{false};
  mutable std::mutex mutex_;
  std::map<Key, Pool> pools_;
  std::unordered_map<void*, Block> blocks_;
  std::vector<Active> active_;
  std::vector<std::pair<int, void*>> parked_;  // device and block: of released pools, to be freed
};

TorchPools& torch_pools();

}  // namespace vmem::intercept
