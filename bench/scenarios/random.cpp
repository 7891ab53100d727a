// random: one launch reads 128-byte lines at random places of the whole region. What is in HBM is read there, the rest in place:
// moving pages for reads that are this sparse would cost more than it gives.
#include <fmt/format.h>

#include "bench/kernels/word.hpp"
#include "bench/scenarios/streaming.hpp"
#include "bench/scenarios/whole_region.hpp"

namespace vmem::bench {
namespace {

constexpr double kDefaultRatio = 4;
constexpr std::uint64_t kReads = std::uint64_t{16} << 20;  // 2 GiB: a third of a second over the link
constexpr std::uint64_t kReadsEmulated = std::uint64_t{256} << 10;

// With half of the region in HBM the link carries half of the reads: more than everything in place, by any margin.
Goal goal_for(double ratio) { return {Goal::Bound::at_least, ratio < 3 ? 1.0 : 0.98, true}; }

}  // namespace

Status run_random(Context& context) {
  VMEM_ASSIGN(const Sizes sizes, plan_sizes(context.settings, context.gpu, kDefaultRatio));
  VMEM_ASSIGN(WholeRegion whole, WholeRegion::create(context, sizes));
  const std::uint64_t seed = context.settings.seed;
  const std::uint64_t reads = context.gpu.emulated() ? kReadsEmulated : kReads;
  const std::uint64_t lines = whole.bytes() / kLineBytes;
  const std::uint64_t expected = expected_random(seed, lines, reads, seed);
  const auto launch = [&](const std::uint64_t* words, CUstream stream, std::uint64_t* sum) {
    return context.launcher.launch(kernels::random, context.launcher.full_grid(), stream, words, lines, reads, seed,
                                   sum);
  };
  VMEM_ASSIGN(const WholeRead read, whole.measure(launch, reads * kLineBytes, expected));
  VMEM_ASSIGN(const double share, whole.resident_share());

  Record record;
  record.scenario = "random";
  record.variant = ratio_text(sizes.ratio);
  record.options = size_options(context.settings, sizes);
  record.options["page_bytes"] = whole.page_bytes();
  record.options["reads"] = reads;
  record.options["read_bytes"] = kLineBytes;
  record.unit = "GB/s";
  record.limit_name = "the same kernel in place from pinned host memory";
  record.goal = goal_for(sizes.ratio);
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

}  // namespace vmem::bench
