// cluster: one node reads a published region from end to end, whose pages a daemon keeps. Pages
// come through the directory, the daemon's page server and the checks, and a kernel sums them up.
// Compares with bare messages between two processes, and with pages of a lender's memory. The
// daemon shares this machine's cores, unless VMEM_CLUSTER names a cluster whose daemons have room
// for copies.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/sizes.hpp"
#include "bench/bare_network.hpp"
#include "bench/local_cluster.hpp"
#include "bench/pattern.hpp"
#include "bench/remote_pages.hpp"
#include "bench/scenarios/streaming.hpp"
#include "bench/second_node.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kWorkingSet = 512 * kMiB;
constexpr std::array kPages{2 * kMiB, 32 * kMiB};
constexpr std::uint64_t kChunk = 32 * kMiB;
constexpr std::uint64_t kHbm = 1024 * kMiB, kHbmEmulated = 256 * kMiB;
constexpr Goal kOfBare{Goal::Bound::at_least, 0.75, true, Goal::Needs::host};
constexpr Goal kOfLender{Goal::Bound::at_least, 0.90, true, Goal::Needs::host};

struct Reading {
  Context& context;
  const Stream& stream;
  const ResultWords& sum;
  std::string name;
  std::string mismatch;
};

// Nothing of the region is here before: what was here ended with its last opening.
Result<double> read_all(Reading& reading) {
  const Context& context = reading.context;
  const Launcher& launcher = context.launcher;
  VMEM_TRY(reading.sum.clear(reading.stream.get()));
  VMEM_TRY(reading.stream.synchronize());
  VMEM_ASSIGN(const Region region, Region::open(reading.name, context.gpu.ordinal()));
  const Stopwatch watch;
  VMEM_TRY(for_each_chunk(reading.context, region, [&](std::uint64_t offset, std::uint64_t bytes) {
    return with_range(region.at(offset), bytes, VMEM_READ, reading.stream.get(), [&] {
      return launcher.launch(kernels::checksum, launcher.full_grid(), reading.stream.get(), region.words(offset),
                             offset / 8, bytes / 8, reading.sum.device());
    });
  }));
  VMEM_TRY(reading.stream.synchronize());
  const double rate = static_cast<double>(region.bytes()) / watch.nanoseconds();
  std::uint64_t found = 0;
  VMEM_TRY(reading.sum.read(reading.stream, &found));
  const std::uint64_t expected = expected_checksum(context.settings.seed, region.bytes() / 8);
  if (found != expected && reading.mismatch.empty()) {
    VMEM_ASSIGN(reading.mismatch,
                explain_checksum(reading.context, region, reading.stream, context.settings.seed, found, expected));
  }
  return rate;
}

// Publishes the pattern; a daemon keeps it, and this node does not.
Status publish(Context& context, const Stream& stream, const std::string& name, std::uint64_t bytes) {
  VMEM_ASSIGN(Region region, Region::allocate(bytes, context.gpu.ordinal(), stream.get()));
  VMEM_TRY(fill_region(context, region, stream, context.settings.seed));
  context.progress.begin("publishing", 1);
  return region.publish(name, 1);
}

template <class Limit>
Status measure(Reading& reading, Record record, Limit&& limit) {
  Context& context = reading.context;
  VMEM_ASSIGN(const Measured measured,
              measure_shown(context, "cluster " + record.variant, limit, [&] { return read_all(reading); }));
  record.set(measured);
  record.mismatch = reading.mismatch;
  record.verified = record.mismatch.empty();
  context.records.push_back(std::move(record));
  context.show_rows();
  return {};
}

Sizes sizes_of(const Settings& settings, const Gpu& gpu, std::uint64_t bytes, std::uint64_t page_bytes) {
  Sizes sizes;
  sizes.hbm_bytes = settings.hbm_bytes.value_or(gpu.emulated() ? kHbmEmulated : kHbm);
  sizes.host_bytes = settings.host_bytes.value_or(2 * std::max(bytes, page_bytes));
  sizes.working_set_bytes = bytes;
  sizes.ratio = double(bytes) / double(sizes.hbm_bytes);
  return sizes;
}

Status measure_pages(Context& context, const Options& options, std::uint64_t bytes, std::uint64_t page_bytes) {
  const Sizes sizes = sizes_of(context.settings, context.gpu, bytes, page_bytes);
  const std::uint64_t pages = std::max<std::uint64_t>(bytes / page_bytes, 1);
  const NodePath path = node_paths(options).front();
  VMEM_ASSIGN(const auto bare, BareNetwork::create(path, page_bytes));
  VMEM_ASSIGN(const auto tier, RemotePages::create(options, page_bytes, pages));
  VMEM_ASSIGN(const PageMemory memory, PageMemory::create(page_bytes, pages));
  VMEM_TRY(tier->store(memory));
  VMEM_ASSIGN(const Session session, Session::start(context.settings, sizes, context.gpu));
  VMEM_ASSIGN(const Stream stream, make_stream(context.gpu));
  VMEM_ASSIGN(const ResultWords sum, ResultWords::create(context.gpu, 1));
  Reading reading{.context = context,
                  .stream = stream,
                  .sum = sum,
                  .name = fmt::format("vmem-bench/{}/{}", getpid(), page_bytes),
                  .mismatch = {}};
  VMEM_TRY(publish(context, stream, reading.name, pages * page_bytes));
  Record record;
  record.scenario = "cluster";
  record.options = size_options(context.settings, sizes);
  record.options["page_bytes"] = page_bytes;
  record.options["channels"] = path.connections;
  record.unit = "GB/s";
  record.variant = fmt::format("{} pages, against the network", format_bytes(page_bytes));
  record.limit_name = bare->name();
  record.goal = kOfBare;
  VMEM_TRY(measure(reading, record, [&] { return bare->one_way(memory.bytes()); }));
  record.variant = fmt::format("{} pages, against a lender", format_bytes(page_bytes));
  record.limit_name = fmt::format("pages of {} from a lender's memory", format_bytes(page_bytes));
  record.goal = kOfLender;
  return measure(reading, record, [&] { return tier->load(memory); });
}

}  // namespace

Status run_cluster(Context& context) {
  Settings settings = context.settings;
  const std::uint64_t bytes = settings.working_set_bytes.value_or(kWorkingSet);
  std::vector<std::uint64_t> page_sizes(kPages.begin(), kPages.end());
  if (settings.page_bytes) page_sizes = {*settings.page_bytes};
  const std::uint64_t most = std::max(bytes, std::ranges::max(page_sizes));
  // Here and at a lender twice, and at the daemon.
  VMEM_TRY(check_host_memory("cluster", 5 * most));
  VMEM_ASSIGN(const Options named, options_named(settings, {"cluster"}));
  std::optional<LocalCluster> own;
  if (named.cluster.empty()) {
    VMEM_ASSIGN(auto started, LocalCluster::start(most * page_sizes.size() + 64 * kMiB));
    own.emplace(std::move(started));
    settings.runtime_options.emplace_back("cluster", own->address());
  }
  VMEM_ASSIGN(const SecondNode lender, SecondNode::start(settings, most));
  Settings to_lender = settings;
  to_lender.runtime_options.emplace_back("remote", lender.address());
  std::erase_if(to_lender.runtime_options, [](const auto& option) { return option.first == "cluster"; });
  VMEM_ASSIGN(Options options, remote_options(to_lender));
  if (!settings.chunk_bytes) settings.chunk_bytes = kChunk;
  for (const std::uint64_t page_bytes : page_sizes) {
    settings.page_bytes = page_bytes;
    Context part = context.with(settings);
    VMEM_TRY(measure_pages(part, options, bytes, page_bytes));
  }
  return {};
}

}  // namespace vmem::bench
