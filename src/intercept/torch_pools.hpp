// Private pools: memory that PyTorch allocates while it captures a CUDA graph. Each replay of the
// graph uses these blocks, so a freed block is reused only by the same pool, until PyTorch releases
// the pool.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
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

  // Allocations on the device's streams that the filter accepts go to the pool, until `end`. Each
  // begin needs one release. std::bad_alloc: until `end` all allocations on the device are refused,
  // since a graph may replay them in memory that serves others by then.
  void begin(const Key& key, Filter filter);
  void end(const Key& key);
  // Marks the block as used by another stream: the pool does not reuse it.
  void record_stream(void* pointer);
  // Releases one use of the pool. After the last use, frees the pool's free blocks once the device
  // is idle and no capture is in progress; live blocks become ordinary allocations.
  Status release(runtime::Runtime& runtime, const Key& key);

  // No value: the allocation belongs to no pool.
  std::optional<Result<void*>> allocate(runtime::Runtime& runtime, std::size_t bytes, int device, CUstream stream);
  // False: the block belongs to no pool.
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
    std::vector<void*> used_up;  // free, but never reused
  };
  struct Active {
    Key key;
    Filter filter;
  };
  // A fast check: most programs have no pool and allocate often.
  std::atomic<bool> ever_used_{false};
  mutable std::mutex mutex_;
  std::map<Key, Pool> pools_;
  std::map<void*, Block> blocks_;
  std::vector<Active> active_;
  std::array<std::uint32_t, 64> failed_begins_{};  // by device, not ended
  // (device, block) of released pools, still to be freed
  std::vector<std::pair<int, void*>> parked_;
};

TorchPools& torch_pools();

}  // namespace vmem::intercept
