#include "bench/request_memory.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "base/sizes.hpp"
#include "gpu/memory_location.hpp"
#include "tiers/frame_pool.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kLargePage = std::uint64_t{2} << 20;
constexpr int kAnything = 0x5a;  // touched, so that the pages exist

std::uint64_t whole_pages(std::uint64_t bytes) { return (bytes + kLargePage - 1) / kLargePage * kLargePage; }

std::unexpected<Error> no_memory(std::uint64_t bytes) {
  return fail(VMEM_ERROR_OUT_OF_MEMORY, fmt::format("no host memory for {}", format_bytes(bytes)));
}

}  // namespace

Result<RequestMemory> in_large_pages(std::uint64_t bytes) {
  const std::uint64_t whole = whole_pages(bytes);
  RequestMemory memory(static_cast<std::byte*>(std::aligned_alloc(kLargePage, whole)), &std::free);
  if (!memory) return no_memory(bytes);
  (void)::madvise(memory.get(), whole, MADV_HUGEPAGE);
  std::memset(memory.get(), kAnything, whole);
  return memory;
}

Result<RequestMemory> as_slots(const Gpu& gpu, std::uint64_t bytes) {
  const std::uint64_t whole = whole_pages(bytes);
  tiers::FramePool::Config config;
  config.driver = gpu.driver_ref();
  config.location = gpu::on_host(0);
  config.accessors = {config.location, gpu::on_device(gpu.ordinal())};
  config.budget_bytes = whole;
  config.name = "host memory for measurements";
  const auto pool = std::make_shared<tiers::FramePool>(std::move(config));
  VMEM_ASSIGN(const auto frame, pool->take(whole));
  if (!frame) return no_memory(bytes);
  auto* const data = reinterpret_cast<std::byte*>(pool->frame(*frame).window);
  std::memset(data, kAnything, whole);
  return RequestMemory(pool, data);
}

}  // namespace vmem::bench
