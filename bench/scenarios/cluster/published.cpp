// Rows of a published region that one node reads from end to end, whose pages a daemon keeps. Pages
// come through the directory, the daemon's page server and the checks, and a kernel sums them up.
// Compares with bare messages between two processes, and with pages of a lender's memory. Two rows
// say what the memory costs: bare messages that stay in no cache, and the lender's pages in memory
// that the GPU can copy from.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/sizes.hpp"
#include "bench/remote_pages.hpp"
#include "bench/scenarios/cluster/rows.hpp"
#include "bench/second_node.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::array kPages{2 * kMiB, 32 * kMiB};
constexpr std::uint64_t kChunk = 32 * kMiB;
constexpr Goal kOfBare{Goal::Bound::at_least, 0.75, true, Goal::Needs::host};
constexpr Goal kOfLender{Goal::Bound::at_least, 0.90, true, Goal::Needs::host};

struct Reading {
  Context& context;
  RegionReader& reader;
  std::string name;
};

// GB/s. Nothing of the region is here before: what was here ended with its last opening.
Result<double> read_all(Reading& reading) {
  VMEM_ASSIGN(const Region region, Region::open(reading.name, reading.context.gpu.ordinal()));
  VMEM_ASSIGN(const double seconds, reading.reader.read(region));
  return static_cast<double>(region.bytes()) / 1e9 / seconds;
}

template <class Limit>
Status measure(Reading& reading, Record record, Limit&& limit) {
  Context& context = reading.context;
  VMEM_ASSIGN(const Measured measured,
              measure_shown(context, "cluster " + record.variant, limit, [&] { return read_all(reading); }));
  record.set(measured);
  record.mismatch = reading.reader.mismatch();
  record.verified = record.mismatch.empty();
  context.records.push_back(std::move(record));
  context.show_rows();
  return {};
}

Status measure_pages(Context& context, const Options& options, std::uint64_t bytes, std::uint64_t page_bytes) {
  const std::uint64_t most = std::max(bytes, page_bytes);
  Sizes sizes = sizes_in_memory(context.settings, context.gpu, most);
  sizes.host_bytes = context.settings.host_bytes.value_or(2 * most);
  const std::uint64_t pages = std::max<std::uint64_t>(bytes / page_bytes, 1);
  const NodePath path = node_paths(options).front();
  VMEM_ASSIGN(const auto bare, BareNetwork::create(path, page_bytes));
  VMEM_ASSIGN(const auto tier, RemotePages::create(options, page_bytes, pages));
  VMEM_ASSIGN(const PageMemory memory, PageMemory::create(page_bytes, pages));
  VMEM_TRY(tier->store(memory));
  VMEM_ASSIGN(const Session session, Session::start(context.settings, sizes, context.gpu));
  VMEM_ASSIGN(RegionReader reader, RegionReader::create(context));
  Reading reading{context, reader, name_of_region(std::to_string(page_bytes))};
  {
    // A daemon keeps it, and this node does not.
    VMEM_ASSIGN(const Region published, publish_pattern(context, reader.stream(), reading.name, pages * page_bytes, 1));
  }
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
  record.variant = fmt::format("{} pages, against memory to memory", format_bytes(page_bytes));
  record.limit_name = bare->name_of_pages();
  record.goal.reset();
  VMEM_TRY(measure(reading, record, [&] { return bare->one_way_of_pages(memory.bytes()); }));
  record.variant = fmt::format("{} pages, against a lender", format_bytes(page_bytes));
  record.limit_name = fmt::format("pages of {} from a lender's memory", format_bytes(page_bytes));
  record.goal = kOfLender;
  VMEM_TRY(measure(reading, record, [&] { return tier->load(memory); }));
  // As the region's pages come.
  VMEM_ASSIGN(const PageMemory slots, PageMemory::pinned(context.gpu, page_bytes, pages));
  record.variant = fmt::format("{} pages, against a lender to slots", format_bytes(page_bytes));
  record.limit_name += " to pinned memory";
  record.goal.reset();
  return measure(reading, record, [&] { return tier->load(slots); });
}

}  // namespace

Status measure_published(Context& context) {
  Settings settings = context.settings;
  const std::uint64_t bytes = working_set_bytes(settings);
  std::vector<std::uint64_t> page_sizes(kPages.begin(), kPages.end());
  if (settings.page_bytes) page_sizes = {*settings.page_bytes};
  const std::uint64_t most = std::max(bytes, std::ranges::max(page_sizes));
  // Here three times and in slots, at a lender, and at the daemon.
  VMEM_TRY(check_host_memory("cluster", 6 * most));
  VMEM_ASSIGN(const auto own, cluster_for(settings, {.copies_bytes = most * page_sizes.size() + 64 * kMiB}));
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
