// block: one launch reads the whole region. First each thread block walks through one contiguous block of it, then the grid
// strides through it together. Pages that found no frame are read in place.
#include <fmt/format.h>

#include "bench/scenarios/streaming.hpp"
#include "bench/scenarios/whole_region.hpp"

namespace vmem::bench {
namespace {

constexpr double kDefaultRatio = 4;

Status add_block(Context& context, WholeRegion& whole, const Sizes& sizes, bool strided, std::uint64_t expected) {
  const auto launch = [&](const std::uint64_t* words, CUstream stream, std::uint64_t* sum) {
    return context.launcher.launch(kernels::blocks, context.launcher.full_grid(), stream, words, whole.bytes() / 8,
                                   strided ? 1 : 0, sum);
  };
  VMEM_ASSIGN(const WholeRead read, whole.measure(launch, whole.bytes(), expected));
  VMEM_ASSIGN(const double share, whole.resident_share());
  Record record;
  record.scenario = "block";
  record.variant = fmt::format("{} {}", strided ? "strided" : "contiguous", ratio_text(sizes.ratio));
  record.options = size_options(context.settings, sizes);
  record.options["page_bytes"] = whole.page_bytes();
  record.unit = "GB/s";
  record.limit_name = "the same kernel in place from pinned host memory";
  record.set(read.rates);
  record.mismatch = read.mismatch;
  record.verified = read.mismatch.empty();
  record.details["resident_share"] = share;
  record.details["moved_in_bytes"] = read.traffic.in_bytes;
  record.notes.push_back(fmt::format("{}: {:.1f} % of the region was in HBM; limit spread {:.1f} %", record.variant,
                                     100 * share, 100 * read.rates.limit.spread()));
  context.records.push_back(std::move(record));
  return {};
}

}  // namespace

Status run_block(Context& context) {
  VMEM_ASSIGN(const Sizes sizes, plan_sizes(context.settings, context.gpu, kDefaultRatio));
  VMEM_ASSIGN(WholeRegion whole, WholeRegion::create(context, sizes));
  const std::uint64_t expected = expected_checksum(context.settings.seed, whole.bytes() / 8);
  VMEM_TRY(add_block(context, whole, sizes, false, expected));
  return add_block(context, whole, sizes, true, expected);
}

}  // namespace vmem::bench
