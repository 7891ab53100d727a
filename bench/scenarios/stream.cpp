// stream: a region larger than HBM, worked through chunk by chunk: acquire, launch, release. Read-only passes add up a checksum;
// read-write passes increment every word. The limit is the bare copy: one way for read-only, both ways for read-write.
#include <fmt/format.h>

#include "base/options.hpp"
#include "bench/scenarios/streaming.hpp"

namespace vmem::bench {
namespace {

constexpr double kDefaultRatio = 4;
constexpr Goal kReadOnlyGoal{Goal::Bound::at_least, 0.97, true};
constexpr Goal kReadWriteGoal{Goal::Bound::at_least, 0.90, true};

Status add_stream(Context& context, StreamMode mode, const CopyLimit& limit) {
  const bool write = mode == StreamMode::read_write;
  VMEM_ASSIGN(const Sizes sizes, plan_sizes(context.settings, context.gpu, kDefaultRatio));
  VMEM_ASSIGN(const Streamed streamed, measure_stream(context, sizes, mode, limit));
  Record record;
  record.scenario = "stream";
  record.variant = fmt::format("{} {}", write ? "read-write" : "read-only", ratio_text(sizes.ratio));
  record.options = stream_options(context, sizes, streamed);
  record.options["mode"] = write ? "rw" : "ro";
  record.unit = "GB/s";
  record.limit_name = (write ? "two-way " : "host-to-device ") + limit.copy_name();
  record.goal = write ? kReadWriteGoal : kReadOnlyGoal;
  record.set(streamed.rates);
  record.mismatch = streamed.mismatch;
  record.verified = streamed.mismatch.empty();
  add_traffic(record, streamed);
  context.records.push_back(std::move(record));
  return {};
}

}  // namespace

Status run_stream(Context& context) {
  VMEM_ASSIGN(const CopyLimit limit, CopyLimit::create(context.gpu));
  if (context.settings.mode != "rw") VMEM_TRY(add_stream(context, StreamMode::read_only, limit));
  if (context.settings.mode != "ro") VMEM_TRY(add_stream(context, StreamMode::read_write, limit));
  return {};
}

}  // namespace vmem::bench
