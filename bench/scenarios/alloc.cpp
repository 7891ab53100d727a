// alloc: malloc and free of sizes that the suballocator caches, against the driver's stream-ordered
// allocator on the same stream.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/sizes.hpp"
#include "bench/pattern.hpp"
#include "bench/runtime.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kSizes[] = {std::uint64_t{4} << 10, std::uint64_t{64} << 10, std::uint64_t{1} << 20};
constexpr int kPairs = 20'000;  // per sample
constexpr int kPairsEmulated = 5'000;
constexpr unsigned kLive = 64;  // allocations filled and checked side by side
constexpr Goal kGoal{Goal::Bound::at_least, 3, true};

// Million pairs a second.
template <class Pair>
Result<double> time_pairs(int pairs, Pair pair) {
  const Stopwatch watch;
  for (int i = 0; i < pairs; ++i) VMEM_TRY(pair());
  return pairs / watch.seconds() / 1e6;
}

Status vmem_pair(std::uint64_t bytes, int device, CUstream stream) {
  void* address = nullptr;
  VMEM_TRY(check(vmem_malloc(&address, bytes, device, stream)));
  return check(vmem_free(address, stream));
}

Status driver_pair(const Gpu& gpu, std::uint64_t bytes, CUstream stream) {
  CUdeviceptr address = 0;
  BENCH_CALL(gpu, cuMemAllocAsync, &address, bytes, stream);
  BENCH_CALL(gpu, cuMemFreeAsync, address, stream);
  return {};
}

// Checks that simultaneous allocations keep their own data, so do not overlap. Returns the error,
// or an empty string.
Result<std::string> check_allocations(Context& context, std::uint64_t bytes, const Stream& stream) {
  std::vector<Region> live;
  for (unsigned i = 0; i < kLive; ++i) {
    VMEM_ASSIGN(auto region, Region::allocate(bytes, context.gpu.ordinal(), stream.get()));
    if (reinterpret_cast<std::uintptr_t>(region.at(0)) % 256 != 0)
      return fmt::format("allocation {} of {} bytes is not aligned to 256 bytes", i, bytes);
    live.push_back(std::move(region));
    VMEM_TRY(fill_region(context, live.back(), stream, context.settings.seed + i));
  }
  for (unsigned i = 0; i < kLive; ++i) {
    VMEM_ASSIGN(std::string wrong, verify_region(context, live[i], stream, context.settings.seed + i, 0));
    if (!wrong.empty()) return fmt::format("allocation {} of {} bytes: {}", i, bytes, wrong);
  }
  return std::string();
}

Status add_size(Context& context, const Sizes& sizes, std::uint64_t bytes, const Stream& stream) {
  const Gpu& gpu = context.gpu;
  const int pairs = gpu.emulated() ? kPairsEmulated : kPairs;
  Record record;
  record.scenario = "alloc";
  record.variant = format_bytes(bytes);
  record.options = size_options(context.settings, sizes);
  record.options["bytes"] = bytes;
  record.options["pairs"] = pairs;
  record.unit = "M/s";
  record.limit_name = "cuMemAllocAsync + cuMemFreeAsync";
  record.limit_is = Record::LimitIs::reference;
  record.goal = kGoal;
  const auto driver = [&]() -> Result<double> {
    VMEM_ASSIGN(const double rate, time_pairs(pairs, [&] { return driver_pair(gpu, bytes, stream.get()); }));
    VMEM_TRY(stream.synchronize());
    return rate;
  };
  const auto vmem = [&] { return time_pairs(pairs, [&] { return vmem_pair(bytes, gpu.ordinal(), stream.get()); }); };
  VMEM_TRY(driver());  // fills both caches
  VMEM_TRY(vmem());
  VMEM_ASSIGN(const Measured measured, measure_interleaved(context.settings.repeats, driver, vmem));
  record.set(measured);
  VMEM_ASSIGN(record.mismatch, check_allocations(context, bytes, stream));
  record.verified = record.mismatch.empty();
  context.records.push_back(std::move(record));
  return {};
}

}  // namespace

Status run_alloc(Context& context) {
  constexpr double kDefaultRatio = 1;
  VMEM_ASSIGN(Sizes sizes, plan_sizes(context.settings, context.gpu, kDefaultRatio));
  VMEM_ASSIGN(const Session session, Session::start(context.settings, sizes, context.gpu));
  VMEM_ASSIGN(const Stream stream, make_stream(context.gpu));
  for (const std::uint64_t bytes : kSizes) VMEM_TRY(add_size(context, sizes, bytes, stream));
  return {};
}

}  // namespace vmem::bench
