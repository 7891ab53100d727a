// block: one launch reads the whole region. First each thread block reads one contiguous block,
// then the grid strides through the region together. Pages without a frame are read in place.
#include <fmt/format.h>

#include "bench/scenarios/streaming.hpp"
#include "bench/scenarios/whole_region.hpp"

namespace vmem::bench {
namespace {

constexpr double kDefaultRatio = 4;

Status add_block(Context& context, WholeRegion& whole, const Sizes& sizes, bool strided) {
  WholeKernel kernel;
  kernel.launch = [&](const std::uint64_t* words, std::uint64_t bytes, CUstream stream, std::uint64_t* sum) {
    return context.launcher.launch(kernels::blocks, context.launcher.full_grid(), stream, words, bytes / 8,
                                   strided ? 1 : 0, sum);
  };
  kernel.read_bytes = [](std::uint64_t bytes) { return bytes; };
  kernel.expected = [&](std::uint64_t bytes) { return expected_checksum(context.settings.seed, bytes / 8); };
  VMEM_ASSIGN(const WholeRead read, whole.measure(kernel));
  const char* const order = strided ? "strided" : "contiguous";
  Record record = whole.record(sizes, fmt::format("{} {}", order, ratio_text(sizes.ratio)), read);
  record.scenario = "block";
  context.records.push_back(std::move(record));
  return {};
}

}  // namespace

Status run_block(Context& context) {
  VMEM_ASSIGN(const Sizes sizes, plan_sizes(context.settings, context.gpu, kDefaultRatio));
  VMEM_ASSIGN(WholeRegion whole, WholeRegion::create(context, sizes));
  VMEM_TRY(add_block(context, whole, sizes, false));
  return add_block(context, whole, sizes, true);
}

}  // namespace vmem::bench
