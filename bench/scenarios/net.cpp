// net: pages one after the other to a second node and back through the remote tier: sealed, sent,
// checked there, sent back, checked here. Compares with bare messages of the same size between two
// processes, over as many connections. Then times single pages beside another borrower's loads, and
// runs the stream scenario over that node. The node is a child process that shares this machine's
// cores, unless --remote names another.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "base/sizes.hpp"
#include "bench/bare_network.hpp"
#include "bench/context.hpp"
#include "bench/remote_pages.hpp"
#include "bench/scenarios/net_beside.hpp"
#include "bench/second_node.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kWorkingSet = 512 * kMiB;
constexpr std::array kPages{2 * kMiB, 8 * kMiB, 32 * kMiB};
constexpr Goal kGoal{Goal::Bound::at_least, 0.90, true, Goal::Needs::host};

// About a second on a loopback device; a slower network moves less data in that time.
constexpr Steady kSteady{.ramp_s = 0.2, .timed_s = 1};
constexpr std::uint64_t kLimitBytes = 4096 * kMiB;
constexpr std::uint64_t kLimitBytesOnce = 64 * kMiB;

constexpr double kStreamRatio = 4;
constexpr std::uint64_t kStreamHbm = 1024 * kMiB;
constexpr std::uint64_t kStreamHbmEmulated = 64 * kMiB;

struct Sides {
  const BareNetwork& bare;
  RemotePages& tier;
  const PageMemory& from;
  const PageMemory& to;
  std::uint32_t channels;
};

Record record_of(const Context& context, const Sides& sides, bool out) {
  Record record;
  record.scenario = "net";
  record.variant = fmt::format("{} pages, {}", format_bytes(sides.from.page_bytes()), out ? "out" : "in");
  record.options = {{"page_bytes", sides.from.page_bytes()},
                    {"working_set_bytes", sides.from.bytes()},
                    {"node", sides.tier.describe()},
                    {"channels", sides.channels},
                    {"repeats", context.settings.repeats}};
  record.unit = "GB/s";
  record.limit_name = sides.bare.name();
  record.goal = kGoal;
  return record;
}

Status measure(Context& context, const Sides& sides, bool out) {
  const bool once = context.settings.passes == 1;
  const Steady steady = once ? Steady{} : kSteady;
  const std::uint64_t limit_bytes = once ? kLimitBytesOnce : kLimitBytes;
  Record record = record_of(context, sides, out);
  std::uint64_t verified = 0;
  const auto limit = [&] { return sides.bare.one_way(limit_bytes); };
  const auto achieved = [&]() -> Result<double> {
    sides.to.wipe();
    VMEM_ASSIGN(const double rate, repeat(steady, sides.from.bytes(), [&] {
                  return out ? sides.tier.store(sides.from) : sides.tier.load(sides.to);
                }));
    if (out) VMEM_TRY(sides.tier.load(sides.to));
    if (record.mismatch.empty()) record.mismatch = difference(sides.from, sides.to);
    verified += sides.to.bytes();
    return rate;
  };
  VMEM_ASSIGN(const Measured measured, measure_shown(context, "net " + record.variant, limit, achieved));
  record.set(measured);
  if (BareNetwork::has_perftest()) {
    VMEM_ASSIGN(const double alone, sides.bare.failing_alone(limit_bytes));
    record.details["perftest_failing_alone_gb_per_s"] = alone;
  }
  record.verified = record.mismatch.empty();
  record.details["verified_bytes"] = record.verified ? verified : 0;
  context.records.push_back(std::move(record));
  context.show_rows();
  return {};
}

// Pages are in memory twice, before and after, and on a second node of this machine once more.
Status check_memory(std::span<const std::uint64_t> page_sizes, std::uint64_t bytes, bool named) {
  const std::uint64_t needed = (named ? 2 : 3) * std::max({bytes, std::ranges::max(page_sizes), net_beside_bytes()});
  return check_host_memory("net", needed);
}

// The stream scenario, with several times the capacity of HBM and host memory on the node.
Status stream(Context& context, bool own) {
  Settings settings = context.settings;
  settings.working_set_bytes.reset();
  if (!settings.hbm_bytes) settings.hbm_bytes = context.gpu.emulated() ? kStreamHbmEmulated : kStreamHbm;
  if (!settings.host_bytes) settings.host_bytes = std::max(*settings.hbm_bytes, kStreamHbmEmulated);
  const double ratio = settings.ratio.value_or(kStreamRatio);  // as in stream
  const double working_set = double(*settings.hbm_bytes + *settings.host_bytes) * ratio;
  std::optional<SecondNode> node;
  if (own) {
    VMEM_ASSIGN(node, SecondNode::start(settings, static_cast<std::uint64_t>(working_set)));
    settings.runtime_options.emplace_back("remote", node->address());
  }
  VMEM_ASSIGN(const Options options, remote_options(settings));
  const std::size_t before = context.records.size();
  Context part = context.with(settings);
  const Status status = run_stream(part);
  for (Record& record : std::span(context.records).subspan(before)) {
    record.scenario = "net";
    record.variant = fmt::format("stream {} over {}", record.variant, own ? "a second node" : options.remote.front());
  }
  return status;
}

}  // namespace

Status run_net(Context& context) {
  Settings settings = context.settings;
  const std::uint64_t bytes = context.settings.working_set_bytes.value_or(kWorkingSet);
  std::vector<std::uint64_t> sizes(kPages.begin(), kPages.end());
  if (context.settings.page_bytes) sizes = {*context.settings.page_bytes};
  VMEM_ASSIGN(const bool named, names_a_node(settings));
  VMEM_TRY(check_memory(sizes, bytes, named));
  std::optional<SecondNode> own;
  if (!named) {
    VMEM_ASSIGN(own, SecondNode::start(settings, std::max({bytes, std::ranges::max(sizes), net_beside_bytes()})));
    settings.runtime_options.emplace_back("remote", own->address());
  }
  VMEM_ASSIGN(Options options, remote_options(settings));
  options.remote.resize(1);  // the limit is that of one node; the stream goes over all
  for (const std::uint64_t page_bytes : sizes) {
    const std::uint64_t pages = std::max<std::uint64_t>(bytes / page_bytes, 1);
    VMEM_ASSIGN(const PageMemory from, PageMemory::create(page_bytes, pages));
    VMEM_ASSIGN(const PageMemory to, PageMemory::create(page_bytes, pages));
    context.progress.begin("filling pages, starting the node", 1);
    from.fill(context.settings.seed);
    const NodePath path = node_paths(options).front();
    VMEM_ASSIGN(const auto bare, BareNetwork::create(path, page_bytes));
    VMEM_ASSIGN(const auto tier, RemotePages::create(options, page_bytes, pages));
    VMEM_TRY(tier->store(from));  // first touch of the node's memory
    const Sides sides{*bare, *tier, from, to, path.connections};
    VMEM_TRY(measure(context, sides, true));
    VMEM_TRY(measure(context, sides, false));
  }
  VMEM_TRY(measure_net_beside(context, options));
  own.reset();
  return stream(context, !named);
}

}  // namespace vmem::bench
