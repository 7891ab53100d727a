// cluster: what the nodes of a cluster do for each other, in groups of rows. Daemons, readers and
// etcd are child processes that share this machine's cores, unless VMEM_CLUSTER names a cluster.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>

#include "bench/remote_pages.hpp"
#include "bench/scenarios/cluster/rows.hpp"
#include "runtime/remote/nodes.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kWorkingSet = 512 * kMiB;
constexpr std::uint64_t kHbm = 1024 * kMiB, kHbmEmulated = 256 * kMiB;
constexpr std::uint64_t kInTransit = 256 * kMiB;  // of host memory, beside the pages

struct Group {
  std::string_view name;
  Status (*measure)(Context&);
};
constexpr std::array kGroups{Group{"published", measure_published}, Group{"page", measure_one_page},
                             Group{"fanout", measure_fan_out}, Group{"overflow", measure_overflow},
                             Group{"drain", measure_drain}};

Status check_rows(const std::vector<std::string>& rows) {
  for (const std::string& row : rows) {
    if (std::ranges::find(kGroups, row, &Group::name) != kGroups.end()) continue;
    std::array<std::string_view, kGroups.size()> names;
    std::ranges::transform(kGroups, names.begin(), &Group::name);
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("--rows {}: there are no such rows; choose of {}", row, fmt::join(names, ", ")));
  }
  return {};
}

}  // namespace

std::uint64_t working_set_bytes(const Settings& settings) { return settings.working_set_bytes.value_or(kWorkingSet); }

Result<std::optional<LocalCluster>> cluster_for(Settings& settings, const LocalCluster::Lends& lends) {
  std::optional<LocalCluster> own;
  VMEM_ASSIGN(const Options named, options_named(settings, {"cluster"}));
  if (!named.cluster.empty()) return own;
  VMEM_ASSIGN(auto started, LocalCluster::start(settings, lends));
  own.emplace(std::move(started));
  settings.runtime_options.emplace_back("cluster", own->address());
  return own;
}

Result<NodePath> path_here(const Settings& settings) {
  VMEM_ASSIGN(const Options options, options_named(settings, {"remote_channels", "secret", "certificates"}));
  const bool local = options.secret.empty() && options.certificates.empty();
  return NodePath{.address = "127.0.0.1:1",  // tells only that it is this machine
                  .connections = runtime::channel_count(options.remote_channels),
                  .sockets = local ? SocketKind::local : SocketKind::tcp};
}

Sizes sizes_in_memory(const Settings& settings, const Gpu& gpu, std::uint64_t bytes) {
  Sizes sizes;
  sizes.hbm_bytes = settings.hbm_bytes.value_or(gpu.emulated() ? kHbmEmulated : kHbm);
  sizes.host_bytes = settings.host_bytes.value_or(bytes + kInTransit);
  sizes.working_set_bytes = bytes;
  sizes.ratio = double(bytes) / double(sizes.hbm_bytes);
  return sizes;
}

Result<Region> publish_pattern(Context& context, const Stream& stream, const std::string& name, std::uint64_t bytes,
                               std::uint32_t copies) {
  VMEM_ASSIGN(Region region, Region::allocate(bytes, context.gpu.ordinal(), stream.get()));
  VMEM_TRY(fill_region(context, region, stream, context.settings.seed));
  context.progress.begin("publishing", 1);
  VMEM_TRY(region.publish(name, copies));
  return region;
}

std::string name_of_region(std::string_view what) { return fmt::format("vmem-bench/{}/{}", getpid(), what); }

Result<RegionReader> RegionReader::create(Context& context) {
  VMEM_ASSIGN(Stream stream, make_stream(context.gpu));
  VMEM_ASSIGN(ResultWords sum, ResultWords::create(context.gpu, 1));
  return RegionReader(context, std::move(stream), std::move(sum));
}

void RegionReader::expect(const Region& region) {
  if (words_ == region.bytes() / 8) return;
  words_ = region.bytes() / 8;
  expected_ = expected_checksum(context_->settings.seed, words_);
}

Result<double> RegionReader::read(const Region& region) {
  const Launcher& launcher = context_->launcher;
  expect(region);
  VMEM_TRY(sum_.clear(stream_.get()));
  VMEM_TRY(stream_.synchronize());
  longest_call_s_ = 0;
  const auto read_chunk = [&](std::uint64_t offset, std::uint64_t bytes) -> Status {
    const Stopwatch call;
    VMEM_TRY(with_range(region.at(offset), bytes, VMEM_READ, stream_.get(), [&] {
      return launcher.launch(kernels::checksum, launcher.full_grid(), stream_.get(), region.words(offset), offset / 8,
                             bytes / 8, sum_.device());
    }));
    longest_call_s_ = std::max(longest_call_s_, call.seconds());
    return {};
  };
  const Stopwatch watch;
  VMEM_TRY(for_each_chunk(*context_, region, read_chunk));
  VMEM_TRY(stream_.synchronize());
  const double seconds = watch.seconds();
  std::uint64_t found = 0;
  VMEM_TRY(sum_.read(stream_, &found));
  if (found != expected_ && mismatch_.empty()) {
    VMEM_ASSIGN(mismatch_, explain_checksum(*context_, region, stream_, context_->settings.seed, found, expected_));
  }
  return seconds;
}

Status run_cluster(Context& context) {
  const std::vector<std::string>& rows = context.settings.rows;
  VMEM_TRY(check_rows(rows));
  if (!context.settings.page_server.empty() && !rows.empty() && std::ranges::find(rows, "page") == rows.end())
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("--page-server is for the rows page, and --rows {} leaves them out", fmt::join(rows, ",")));
  for (const Group& group : kGroups) {
    if (!rows.empty() && std::ranges::find(rows, group.name) == rows.end()) continue;
    context.progress.begin(fmt::format("cluster {}", group.name), 1);
    const Stopwatch watch;
    VMEM_TRY(group.measure(context));
    context.show_rows();
    fmt::print("{} done in {:.0f} s\n", group.name, watch.seconds());
    std::fflush(stdout);
    // A later group may not end.
    VMEM_TRY(save_records(context.records, context.gpu, context.settings, Saving::intermediate));
  }
  return {};
}

}  // namespace vmem::bench
