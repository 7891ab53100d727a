// Cost of one malloc and free of a small block, over a source that costs nothing.
#include <benchmark/benchmark.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/suballocator.hpp"

namespace {

using vmem::Result;
using vmem::Status;
using vmem::runtime::StreamId;
using vmem::runtime::Suballocator;

constexpr std::uintptr_t kBase = 0x7d0000000000;
constexpr std::size_t kSpaceBytes = std::size_t{1} << 40;

// Never reuses addresses: the benchmarks need less than a TiB.
class Source : public vmem::runtime::SlabSource, public vmem::runtime::StreamMarks {
 public:
  Result<std::uintptr_t> allocate_slabs(int, std::size_t bytes) override { return next_.fetch_add(bytes); }
  Status free_slabs(std::uintptr_t) override { return {}; }
  std::size_t spare_bytes(int) const override { return std::size_t{16} << 20; }
  std::uintptr_t context() noexcept override { return 0; }
  Result<std::uint64_t> mark(const StreamId&) override { return 0; }
  bool complete(std::uint64_t) override { return true; }

 private:
  std::atomic<std::uintptr_t> next_{kBase};
};

Source source;
Suballocator& allocator() {
  static const auto made = Suballocator::create(source, source, kBase, kSpaceBytes);
  return **made;
}

vmem_stream stream_of(std::int64_t handle) { return reinterpret_cast<vmem_stream>(handle); }

void pair(benchmark::State& state) {
  Suballocator& blocks = allocator();
  const auto bytes = std::size_t(state.range(0));
  const vmem_stream stream = stream_of(state.range(1));
  while (state.KeepRunning()) {
    const auto block = blocks.allocate(0, bytes, stream);
    benchmark::DoNotOptimize(*block);
    const auto freed = blocks.free(*block, stream);
    benchmark::DoNotOptimize(freed.has_value());
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(pair)
    ->ArgNames({"bytes", "stream"})
    ->Args({256, 0xa000})
    ->Args({5000, 0xa000})
    ->Args({1 << 20, 0xa000})
    ->Args({256, 0});
BENCHMARK(pair)->ArgNames({"bytes", "stream"})->Args({256, 0xa000})->ThreadRange(2, 8)->UseRealTime();

// More blocks than a bin holds: half of them go through the depot.
void batch(benchmark::State& state) {
  Suballocator& blocks = allocator();
  std::vector<std::uintptr_t> held(std::size_t(state.range(0)));
  while (state.KeepRunning()) {
    for (auto& block : held) block = *blocks.allocate(0, 1000, stream_of(0xa000));
    for (const auto block : held) benchmark::DoNotOptimize(blocks.free(block, stream_of(0xa000)).has_value());
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(batch)->Arg(32)->Arg(1000)->Arg(100'000);
BENCHMARK(batch)->Arg(1000)->ThreadRange(2, 8)->UseRealTime();

void find(benchmark::State& state) {
  Suballocator& blocks = allocator();
  const std::uintptr_t block = *blocks.allocate(0, 5000, stream_of(0xa000));
  while (state.KeepRunning()) benchmark::DoNotOptimize(blocks.find(block + 4000));
  benchmark::DoNotOptimize(blocks.free(block, stream_of(0xa000)).has_value());
}
BENCHMARK(find);

}  // namespace
