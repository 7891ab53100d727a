// stream: a region larger than HBM, worked through chunk by chunk: acquire, launch, release. Read-only passes add up a checksum;
// read-write passes increment every word. The limit is the bare copy: one way for read-only, both ways for read-write. Where pages go on to
// other nodes or files, it is the network, or the disk.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "bench/bare_disk.hpp"
#include "bench/bare_network.hpp"
#include "bench/copy_limit.hpp"
#include "bench/disk_pages.hpp"
#include "bench/remote_pages.hpp"
#include "bench/scenarios/streaming.hpp"

namespace vmem::bench {
namespace {

constexpr double kDefaultRatio = 4;
constexpr Goal kReadOnlyGoal{Goal::Bound::at_least, 0.97, true};
constexpr Goal kDiskGoal{Goal::Bound::at_least, 0.95, true};
constexpr Goal kNetworkGoal{Goal::Bound::at_least, 0.85, true};
constexpr std::uint64_t kMessageBytes = std::uint64_t{2} << 20;     // that the network's rate is measured with
constexpr std::uint64_t kNetworkBytes = std::uint64_t{2048} << 20;  // for a sample of that
constexpr std::uint64_t kNetworkBytesOnce = std::uint64_t{64} << 20;
constexpr std::uint64_t kDiskBytes = std::uint64_t{512} << 20;  // of the file that the disk's rate is measured with
constexpr Goal kReadWriteGoal{Goal::Bound::at_least, 0.90, true};

Status add_stream(Context& context, StreamMode mode, StreamLimit& limit, Goal goal) {
  VMEM_ASSIGN(const Sizes sizes, plan_sizes(context.settings, context.gpu, kDefaultRatio));
  VMEM_ASSIGN(const Streamed streamed, measure_stream(context, sizes, mode, limit));
  Record record = stream_record(context, sizes, mode, limit, streamed);
  record.scenario = "stream";
  record.goal = goal;
  context.records.push_back(std::move(record));
  return {};
}

bool has_option(const Settings& settings, std::string_view name) {
  return std::ranges::any_of(settings.runtime_options, [&](const auto& each) { return each.first == name; });
}

}  // namespace

Status run_stream(Context& context) {
  const Settings& settings = context.settings;
  std::unique_ptr<StreamLimit> limit;
  Goal read_only = kReadOnlyGoal, read_write = kReadWriteGoal;
  VMEM_ASSIGN(const Options nodes, remote_options(settings));
  if (!nodes.remote.empty()) {
    VMEM_ASSIGN(auto network, BareNetwork::create(nodes.remote.front(), settings.page_bytes.value_or(kMessageBytes)));
    limit =
        std::make_unique<NetworkLimit>(std::move(network), settings.passes == 1 ? kNetworkBytesOnce : kNetworkBytes);
    read_only = read_write = kNetworkGoal;
  } else if (has_option(settings, "nvme")) {
    VMEM_ASSIGN(const Options options, disk_options(settings));
    VMEM_ASSIGN(RequestMemory memory, as_slots(context.gpu, BareDisk::kMemoryBytes));
    VMEM_ASSIGN(auto disk, BareDisk::create(options.nvme.front().path, kDiskBytes, std::move(memory)));
    limit = std::make_unique<DiskLimit>(std::move(disk));
    read_only = read_write = kDiskGoal;
  } else {
    VMEM_ASSIGN(auto copies, CopyLimit::create(context.gpu));
    limit = std::make_unique<CopyLimit>(std::move(copies));
  }
  if (settings.mode != "rw") VMEM_TRY(add_stream(context, StreamMode::read_only, *limit, read_only));
  if (settings.mode != "ro") VMEM_TRY(add_stream(context, StreamMode::read_write, *limit, read_write));
  return {};
}

}  // namespace vmem::bench
