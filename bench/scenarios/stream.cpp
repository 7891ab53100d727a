// stream: a region larger than HBM, worked through chunk by chunk: acquire, launch, release. Read-only passes add up a checksum;
// read-write passes increment every word. The limit is the bare copy: one way for read-only, both ways for read-write.
#include <fmt/format.h>

#include <algorithm>

#include "base/options.hpp"
#include "bench/bare_disk.hpp"
#include "bench/disk_pages.hpp"
#include "bench/scenarios/streaming.hpp"

namespace vmem::bench {
namespace {

constexpr double kDefaultRatio = 4;
constexpr Goal kReadOnlyGoal{Goal::Bound::at_least, 0.97, true};
constexpr Goal kDiskGoal{Goal::Bound::at_least, 0.95, true};
constexpr std::uint64_t kDiskBytes = std::uint64_t{512} << 20;  // of the file that the disk's rate is measured with
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
  if (limit.disk() != nullptr) record.limit_name = write ? "the disk, both ways" : "reading the disk";
  record.goal = write ? kReadWriteGoal : kReadOnlyGoal;
  if (limit.disk() != nullptr) record.goal = kDiskGoal;
  record.set(streamed.rates);
  record.mismatch = streamed.mismatch;
  record.verified = streamed.mismatch.empty();
  add_traffic(record, streamed);
  context.records.push_back(std::move(record));
  return {};
}

bool has_option(const Settings& settings, std::string_view name) {
  return std::ranges::any_of(settings.runtime_options, [&](const auto& each) { return each.first == name; });
}

}  // namespace

Status run_stream(Context& context) {
  VMEM_ASSIGN(CopyLimit limit, CopyLimit::create(context.gpu));
  // Over a chain that ends in files the disk is what there is to be waited for.
  if (has_option(context.settings, "nvme")) {
    VMEM_ASSIGN(const auto directories, disk_directories(context.settings));
    VMEM_ASSIGN(auto disk, BareDisk::create(directories.front().path, kDiskBytes));
    limit.be_disk(std::move(disk));
  }
  if (context.settings.mode != "rw") VMEM_TRY(add_stream(context, StreamMode::read_only, limit));
  if (context.settings.mode != "ro") VMEM_TRY(add_stream(context, StreamMode::read_write, limit));
  return {};
}

}  // namespace vmem::bench
