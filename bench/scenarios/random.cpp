// random: one launch reads 128-byte lines at random places of the whole region. Resident pages are
// read in HBM, the rest in place: such sparse reads do not repay moving pages.
#include <fmt/format.h>

#include "bench/kernels/word.hpp"
#include "bench/scenarios/streaming.hpp"
#include "bench/scenarios/whole_region.hpp"

namespace vmem::bench {
namespace {

constexpr double kDefaultRatio = 4;
// 2 GiB: a third of a second over the link.
constexpr std::uint64_t kReads = std::uint64_t{16} << 20;
constexpr std::uint64_t kReadsEmulated = std::uint64_t{256} << 10;

constexpr Goal kGoal{Goal::Bound::at_least, 0.98, true};

}  // namespace

Status run_random(Context& context) {
  VMEM_ASSIGN(const Sizes sizes, plan_sizes(context.settings, context.gpu, kDefaultRatio));
  VMEM_ASSIGN(WholeRegion whole, WholeRegion::create(context, sizes));
  const std::uint64_t seed = context.settings.seed;
  const std::uint64_t all_reads = context.gpu.emulated() ? kReadsEmulated : kReads;
  // As many a line as over the whole region.
  const auto reads_of = [=, whole_bytes = whole.bytes()](std::uint64_t bytes) {
    return static_cast<std::uint64_t>(double(all_reads) * double(bytes) / double(whole_bytes));
  };
  WholeKernel kernel;
  kernel.launch = [&](const std::uint64_t* words, std::uint64_t bytes, CUstream stream, std::uint64_t* sum) {
    return context.launcher.launch(kernels::random, context.launcher.full_grid(), stream, words, bytes / kLineBytes,
                                   reads_of(bytes), seed, sum);
  };
  kernel.read_bytes = [&](std::uint64_t bytes) { return reads_of(bytes) * kLineBytes; };
  kernel.expected = [&](std::uint64_t bytes) {
    return expected_random(seed, bytes / kLineBytes, reads_of(bytes), seed);
  };
  VMEM_ASSIGN(const WholeRead read, whole.measure(kernel));
  Record record = whole.record(sizes, ratio_text(sizes.ratio), read);
  record.scenario = "random";
  record.options["reads"] = all_reads;
  record.options["read_bytes"] = kLineBytes;
  record.goal = kGoal;
  context.records.push_back(std::move(record));
  return {};
}

}  // namespace vmem::bench
