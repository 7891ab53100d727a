// scale: the same working set streamed with a small HBM budget and with a large one. The runtime's
// work per byte must not grow with the number of pages that do not fit. Compares the rates of link
// bytes: a large budget keeps a part of the working set resident, which no policy can match with a
// small one.
#include <fmt/format.h>

#include <algorithm>

#include "base/sizes.hpp"
#include "bench/copy_limit.hpp"
#include "bench/scenarios/streaming.hpp"

namespace vmem::bench {
namespace {

constexpr double kSmallRatio = 64;
constexpr double kSmallRatioEmulated = 16;  // of the least budget that the runtime takes
constexpr double kReferenceRatio = 4;
constexpr std::uint64_t kDefaultSmallHbm = std::uint64_t{512} << 20;
constexpr std::uint64_t kDefaultSmallHbmEmulated = std::uint64_t{32} << 20;
// "No slower", with a margin for the spread between two equal runs.
constexpr Goal kGoal{Goal::Bound::at_least, 0.98, true};

}  // namespace

Status run_scale(Context& context) {
  Settings small = context.settings;
  if (!small.working_set_bytes && !small.hbm_bytes)
    small.hbm_bytes = context.gpu.emulated() ? kDefaultSmallHbmEmulated : kDefaultSmallHbm;
  const double small_ratio = context.gpu.emulated() ? kSmallRatioEmulated : kSmallRatio;
  VMEM_ASSIGN(const Sizes small_sizes, plan_sizes(small, context.gpu, small_ratio));
  Settings reference = context.settings;
  reference.ratio = kReferenceRatio;
  reference.hbm_bytes.reset();
  reference.working_set_bytes = small_sizes.working_set_bytes;
  VMEM_ASSIGN(const Sizes reference_sizes, plan_sizes(reference, context.gpu, kReferenceRatio));

  VMEM_ASSIGN(CopyLimit copies, CopyLimit::create(context.gpu));
  VMEM_ASSIGN(const Streamed at_reference, measure_stream(context, reference_sizes, StreamMode::read_only, copies));
  VMEM_ASSIGN(const Streamed at_small, measure_stream(context, small_sizes, StreamMode::read_only, copies));

  Record record;
  record.scenario = "scale";
  record.variant = fmt::format("{} against {}", ratio_text(small_sizes.ratio), ratio_text(reference_sizes.ratio));
  record.options = stream_options(context, small_sizes, at_small);
  record.unit = "GB/s";
  record.limit_name = fmt::format("bytes over the link at {} in the same run", ratio_text(reference_sizes.ratio));
  record.goal = kGoal;
  record.limit_is = Record::LimitIs::reference;
  record.set({at_reference.rates.achieved, at_small.rates.achieved});
  record.details["reference_processed_gb_per_s"] = at_reference.processed.median();
  record.details["bare_copy_gb_per_s"] = at_small.rates.limit.median();
  record.mismatch = at_reference.mismatch.empty() ? at_small.mismatch : at_reference.mismatch;
  record.verified = record.mismatch.empty();
  add_traffic(record, at_small);
  context.records.push_back(std::move(record));
  return {};
}

}  // namespace vmem::bench
