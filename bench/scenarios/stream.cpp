// stream: a region larger than HBM, processed chunk by chunk: acquire, launch, release. Read-only
// passes sum a checksum; read-write passes increment every word. The limit is the bare copy, one
// way for read-only, both ways for read-write; over a chain it is the network or the disks, over
// other GPUs' memory the links to these.
#include <fmt/format.h>

#include <memory>
#include <vector>

#include "bench/bare_disk.hpp"
#include "bench/bare_network.hpp"
#include "bench/copy_limit.hpp"
#include "bench/peer_limit.hpp"
#include "bench/remote_pages.hpp"
#include "bench/scenarios/streaming.hpp"

namespace vmem::bench {
namespace {

constexpr double kDefaultRatio = 4;
constexpr Goal kReadOnlyGoal{Goal::Bound::at_least, 0.97, true};
constexpr Goal kDiskGoal{Goal::Bound::at_least, 0.95, true, Goal::Needs::host};
constexpr Goal kNetworkGoal{Goal::Bound::at_least, 0.85, true, Goal::Needs::host};
constexpr Goal kPeerGoal{Goal::Bound::at_least, 0.95, true};
constexpr Goal kReadWriteGoal{Goal::Bound::at_least, 0.90, true};
// At most so much is sent to a node for a sample of its rate.
constexpr std::uint64_t kNetworkBytes = std::uint64_t{2048} << 20;
constexpr std::uint64_t kNetworkBytesOnce = std::uint64_t{64} << 20;
// File size for measuring a disk's rate.
constexpr std::uint64_t kDiskBytes = std::uint64_t{512} << 20;

struct Link {
  std::unique_ptr<StreamLimit> limit;
  Goal read_only, read_write;
};

// In a cluster pages may go to HBM that a daemon of this host lends: only the traffic shows it.
Status check_link(const Streamed& streamed, const StreamLimit& limit, StreamMode mode) {
  const Traffic& traffic = streamed.traffic;
  const bool elsewhere = traffic.peer_in_bytes != 0 && limit.crossed(traffic, mode) == 0;
  if (!elsewhere) return {};
  return fail(
      VMEM_ERROR_INVALID_OPTION,
      fmt::format(
          "all pages that moved went to HBM that a daemon of this host lends to the cluster, so none crossed "
          "the link that was measured ({}): name the daemon's socket, which it says at its start, with --peers, "
          "and leave the cluster out",
          limit.name(mode)));
}

Status add_stream(Context& context, StreamMode mode, StreamLimit& limit, Goal goal) {
  VMEM_ASSIGN(const Sizes sizes, plan_sizes(context.settings, context.gpu, kDefaultRatio));
  VMEM_ASSIGN(const Streamed streamed, measure_stream(context, sizes, mode, limit));
  VMEM_TRY(check_link(streamed, limit, mode));
  Record record = stream_record(context, sizes, mode, limit, streamed);
  record.scenario = "stream";
  record.goal = goal;
  context.records.push_back(std::move(record));
  return {};
}

Result<std::unique_ptr<DiskLimit>> disk_limit(const Context& context, const std::vector<StoreDirectory>& directories) {
  std::vector<std::unique_ptr<BareDisk>> disks;
  for (const StoreDirectory& directory : directories) {
    VMEM_ASSIGN(RequestMemory memory, as_slots(context.gpu, BareDisk::kMemoryBytes));
    VMEM_ASSIGN(auto disk, BareDisk::create(directory.path, kDiskBytes, std::move(memory)));
    disks.push_back(std::move(disk));
  }
  return std::make_unique<DiskLimit>(std::move(disks));
}

// The link that the bytes which do not fit cross: the slowest of those that the options name.
Result<Link> find_link(const Context& context) {
  VMEM_ASSIGN(const Options nodes, remote_options(context.settings));
  VMEM_ASSIGN(const Options here, options_named(context.settings, {"nvme", "peers"}));
  if (!nodes.remote.empty()) {
    const std::uint64_t most = context.settings.passes == 1 ? kNetworkBytesOnce : kNetworkBytes;
    return Link{std::make_unique<NetworkLimit>(node_paths(nodes), most), kNetworkGoal, kNetworkGoal};
  }
  if (!here.nvme.empty()) {
    VMEM_ASSIGN(auto disks, disk_limit(context, here.nvme));
    return Link{std::move(disks), kDiskGoal, kDiskGoal};
  }
  if (!here.peers.empty()) {
    VMEM_ASSIGN(const std::vector<int> lenders, lending_devices(context.gpu, here.peers));
    VMEM_ASSIGN(auto peers, PeerLimit::create(context.gpu, lenders));
    return Link{std::make_unique<PeerLimit>(std::move(peers)), kPeerGoal, kPeerGoal};
  }
  VMEM_ASSIGN(auto copies, CopyLimit::create(context.gpu));
  return Link{std::make_unique<CopyLimit>(std::move(copies)), kReadOnlyGoal, kReadWriteGoal};
}

}  // namespace

Status run_stream(Context& context) {
  VMEM_ASSIGN(const Link link, find_link(context));
  const std::string& mode = context.settings.mode;
  if (mode != "rw") VMEM_TRY(add_stream(context, StreamMode::read_only, *link.limit, link.read_only));
  if (mode != "ro") VMEM_TRY(add_stream(context, StreamMode::read_write, *link.limit, link.read_write));
  return {};
}

}  // namespace vmem::bench
