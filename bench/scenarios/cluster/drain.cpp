// Rows of a daemon that is drained while a program scans the pages that it holds for it: to another
// daemon, at the drain's default rate, and back as fast as it goes. The limit is the time that the
// pages need at the lesser of the drain's rate and that of the path, where pages are loaded and
// stored at the same time while nothing else is in flight.
#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <optional>
#include <thread>

#include "base/sizes.hpp"
#include "bench/all_at_once.hpp"
#include "bench/remote_pages.hpp"
#include "bench/scenarios/cluster/rows.hpp"
#include "bench/second_node.hpp"
#include "runtime/cluster/node_drain.hpp"

namespace vmem::bench {
namespace {

using runtime::ClusterNode;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kPage = 2 * kMiB;
constexpr std::uint64_t kMostHeld = 1024 * kMiB;
constexpr std::uint64_t kLeast = 64 * kMiB;           // of HBM and of host memory
constexpr std::uint64_t kMostPathBytes = 256 * kMiB;  // loaded, and as many stored
constexpr Steady kSteady{.ramp_s = 0.1, .timed_s = 1};
constexpr int kPathSamples = 3;
constexpr std::uint64_t kDefaultRate = 256 * kMiB;            // of `vmem node drain`
constexpr std::uint64_t kUnbounded = std::uint64_t{1} << 40;  // more than any path carries
constexpr std::chrono::seconds kMost{150};
constexpr std::chrono::milliseconds kPeriod{50};  // between looks at the registry
constexpr std::uint64_t kRegistryUs = 600'000'000;
constexpr double kLate_s = 1;  // after a call's deadline
constexpr Goal kGoal{Goal::Bound::at_most, 1.5, true, Goal::Needs::host};

std::unexpected<Error> too_late(const std::string& what) {
  return fail(VMEM_ERROR_TIMEOUT, fmt::format("{}: not within {} s", what, kMost.count()));
}

// ---- the path's rate ----

// A borrower of half of what the node lends.
struct Borrower {
  PageMemory memory;
  std::unique_ptr<RemotePages> tier;
};
Result<Borrower> borrow(Options options, std::uint64_t pages, std::uint64_t seed) {
  options.borrow_bytes = pages * kPage;
  VMEM_ASSIGN(PageMemory memory, PageMemory::create(kPage, pages));
  memory.fill(seed);
  VMEM_ASSIGN(auto tier, RemotePages::create(options, kPage, pages));
  VMEM_TRY(tier->store(memory));
  return Borrower{std::move(memory), std::move(tier)};
}

// GB/s of pages that are loaded while as many are stored, as by moves that follow each other.
Result<Samples> measure_path(Context& context, const std::string& address, std::uint64_t bytes) {
  Settings settings = context.settings;
  std::erase_if(settings.runtime_options,
                [](const auto& option) { return option.first == "cluster" || option.first == "remote"; });
  settings.runtime_options.emplace_back("remote", address);
  VMEM_ASSIGN(const Options options, remote_options(settings));
  const std::uint64_t pages = std::max<std::uint64_t>(std::min(bytes / 2, kMostPathBytes) / kPage, 1);
  VMEM_ASSIGN(Borrower from, borrow(options, pages, settings.seed));
  VMEM_ASSIGN(Borrower to, borrow(options, pages, settings.seed + 1));
  context.progress.begin("cluster drain: rate of the path", kPathSamples);
  Samples samples;
  for (int sample = 0; sample < kPathSamples; ++sample) {
    const Steady steady = settings.passes == 1 ? Steady{} : kSteady;
    const auto both_ways = [&](std::size_t way) {
      return way == 0 ? from.tier->load(from.memory) : to.tier->store(to.memory);
    };
    const auto pass = [&]() -> Result<double> {
      const Stopwatch watch;
      VMEM_TRY(sum_all_at_once(2, both_ways));
      return double(pages * kPage) / watch.nanoseconds();
    };
    VMEM_ASSIGN(const double rate, repeat(steady, pages * kPage, pass));
    samples.add(rate);
    context.progress.advance();
  }
  return samples;
}

// ---- the drain ----

struct Emptied {
  double first_s = 0;     // until the node said that it has less
  double no_pages_s = 0;  // until it said that it has none
  double seconds = 0;     // until it said that nobody has a lease there either
};

Result<ClusterNode> find_node(runtime::RegistryClient& registry, NodeId id) {
  VMEM_ASSIGN(const std::vector<ClusterNode> nodes, runtime::list_nodes(registry));
  const auto found = std::ranges::find(nodes, id, &ClusterNode::id);
  if (found == nodes.end())
    return fail(VMEM_ERROR_DRIVER, fmt::format("node {} has left the cluster", static_cast<std::uint64_t>(id)));
  return *found;
}

// Looks at what the node says until it holds nothing.
Result<Emptied> wait_until_empty(runtime::RegistryClient& registry, NodeId id, std::uint64_t held,
                                 const Stopwatch& watch) {
  Emptied emptied;
  while (watch.seconds() < double(kMost.count())) {
    VMEM_ASSIGN(const ClusterNode node, find_node(registry, id));
    if (node.holds) {
      const double now = watch.seconds();
      if (emptied.first_s == 0 && node.holds->pages() < held) emptied.first_s = now;
      if (emptied.no_pages_s == 0 && node.holds->pages() == 0) emptied.no_pages_s = now;
      emptied.seconds = now;
      if (node.holds->drains && !node.holds->any()) return emptied;
    }
    std::this_thread::sleep_for(kPeriod);
  }
  return too_late(fmt::format("node {} holds pages still", static_cast<std::uint64_t>(id)));
}

struct Scan {
  std::uint64_t bytes = 0, passes = 0;
  double seconds = 0, longest_call_s = 0;
};

// The program: its region, which overflows, and a node that holds what does.
struct Drains {
  Context& context;
  const Region& region;
  RegionReader& reader;
  runtime::RegistryClient& registry;
  Samples path;  // GB/s
  double deadline_s = 0;
};

// Passes over the region, the last of which ends after the drain.
Result<Scan> scan_until(Drains& drains, std::future<Result<Emptied>>& emptied) {
  Scan scan;
  const Stopwatch watch;
  do {
    VMEM_ASSIGN(const double seconds, drains.reader.read(drains.region));
    scan.seconds += seconds;
    scan.bytes += drains.region.bytes();
    ++scan.passes;
    scan.longest_call_s = std::max(scan.longest_call_s, drains.reader.longest_call_s());
  } while (emptied.wait_for(std::chrono::seconds(0)) != std::future_status::ready);
  return scan;
}

// What a node says comes up to a second late, so it is asked until it has said the same twice.
Result<std::uint64_t> held_bytes(Drains& drains, NodeId id) {
  constexpr std::chrono::milliseconds kSaid{1200};
  std::uint64_t held = 0;
  for (const Stopwatch watch; watch.seconds() < double(kMost.count());) {
    VMEM_ASSIGN(const ClusterNode node, find_node(drains.registry, id));
    const std::uint64_t now = node.holds ? node.holds->pages() : 0;
    if (now != 0 && now == held) return held;
    held = now;
    std::this_thread::sleep_for(kSaid);
  }
  return too_late(fmt::format("node {} has pages", static_cast<std::uint64_t>(id)));
}

// `rate`: that of the order; 0: the default.
void add_record(Drains& drains, std::uint64_t held, std::uint64_t rate, const Emptied& times, const Scan& scan) {
  const double path = drains.path.median() * 1e9, paced = double(rate == 0 ? kDefaultRate : rate);
  Record record;
  record.scenario = "cluster";
  record.variant = fmt::format("drain of {}, {}", format_bytes(held),
                               rate == 0 ? fmt::format("at {} a second", format_bytes(kDefaultRate)) : "unpaced");
  record.options = {{"page_bytes", drains.region.page_bytes()},
                    {"working_set_bytes", drains.region.bytes()},
                    {"held_bytes", held},
                    {"rate_bytes_s", rate},
                    {"seed", drains.context.settings.seed}};
  record.unit = "s";
  record.limit_name = fmt::format(
      "its bytes at {}", paced < path ? "the drain's rate" : "the rate of pages loaded and stored at once, idle");
  record.limit_is = Record::LimitIs::reference;
  record.limit = double(held) / std::min(path, paced);
  record.achieved = times.seconds;
  if (rate == 0) record.goal = kGoal;  // beside a scan, none is as fast as the idle path
  record.details = {{"path_gb_per_s", drains.path.median()},
                    {"path_spread", drains.path.spread()},
                    {"first_moved_s", times.first_s},
                    {"no_pages_s", times.no_pages_s},
                    {"scan_gb_per_s", double(scan.bytes) / 1e9 / scan.seconds},
                    {"scan_passes", scan.passes},
                    {"longest_call_s", scan.longest_call_s},
                    {"call_deadline_s", drains.deadline_s}};
  record.mismatch = drains.reader.mismatch();
  if (record.mismatch.empty() && scan.longest_call_s > drains.deadline_s + kLate_s)
    record.mismatch = fmt::format("no wrong byte, but a call took {:.1f} s, and its deadline is {:.1f} s",
                                  scan.longest_call_s, drains.deadline_s);
  record.verified = record.mismatch.empty();
  record.notes.push_back(fmt::format(
      "{}: the path carries {:.2f} GB/s; fewer pages were said to be there after {:.1f} s, none after {:.1f} s; the "
      "program scanned {:.2f} GB/s meanwhile, its longest call took {:.3f} s",
      record.variant, drains.path.median(), times.first_s, times.no_pages_s, double(scan.bytes) / 1e9 / scan.seconds,
      scan.longest_call_s));
  drains.context.records.push_back(std::move(record));
  drains.context.show_rows();
}

// A daemon that joins, or stays after all, is used once the program has a lease there.
Status wait_for_room_beyond(std::uint64_t budget_bytes) {
  for (const Stopwatch watch; watch.seconds() < double(kMost.count());) {
    VMEM_ASSIGN(const vmem_statistics now, read_statistics());
    if (now.remote_budget_bytes > budget_bytes) return {};
    std::this_thread::sleep_for(kPeriod);
  }
  return too_late("the program uses another daemon");
}

Result<std::uint64_t> budget_bytes() {
  VMEM_ASSIGN(const vmem_statistics now, read_statistics());
  return now.remote_budget_bytes;
}

// Has the node used again afterwards. `rate`: bytes a second; 0: the default.
Status drain_once(Drains& drains, NodeId id, std::uint64_t rate) {
  Context& context = drains.context;
  VMEM_ASSIGN(const std::uint64_t held, held_bytes(drains, id));
  context.progress.begin("cluster drain", drains.region.bytes());
  const Stopwatch watch;
  VMEM_TRY(runtime::drain_node(drains.registry, id, {.rate = rate, .exit = false}, runtime::RoomCheck::required));
  auto emptied =
      std::async(std::launch::async, wait_until_empty, std::ref(drains.registry), id, held, std::cref(watch));
  const Result<Scan> scan = scan_until(drains, emptied);
  VMEM_ASSIGN(const Emptied times, emptied.get());
  VMEM_TRY(scan);
  VMEM_ASSIGN(const std::uint64_t budget, budget_bytes());
  VMEM_TRY(runtime::undrain_node(drains.registry, id));
  VMEM_TRY(wait_for_room_beyond(budget));
  add_record(drains, held, rate, times, *scan);
  return {};
}

// The only other daemon of the cluster.
Result<NodeId> id_of_other(runtime::RegistryClient& registry, NodeId first) {
  VMEM_ASSIGN(const std::vector<ClusterNode> nodes, runtime::list_nodes(registry));
  for (const ClusterNode& node : nodes)
    if (node.id != first && node.record.lends.memory != 0) return node.id;
  return fail(VMEM_ERROR_DRIVER, "the second daemon is not listed in the cluster");
}

Sizes sizes_of(const Settings& settings, std::uint64_t held) {
  Sizes sizes;
  sizes.hbm_bytes = settings.hbm_bytes.value_or(std::max(held / 8 / kPage * kPage, kLeast));
  sizes.host_bytes = settings.host_bytes.value_or(std::max(sizes.hbm_bytes, kLeast));
  sizes.working_set_bytes = (held + sizes.hbm_bytes + sizes.host_bytes) / kPage * kPage;
  sizes.ratio = double(sizes.working_set_bytes) / double(sizes.hbm_bytes);
  return sizes;
}

}  // namespace

Status measure_drain(Context& context) {
  Settings settings = context.settings;
  if (!settings.page_bytes) settings.page_bytes = kPage;
  const Sizes sizes = sizes_of(settings, std::min(working_set_bytes(settings), kMostHeld));
  // All pages may have a copy below.
  const std::uint64_t lent = sizes.working_set_bytes + kLeast;
  VMEM_TRY(check_host_memory("cluster", 2 * lent + sizes.host_bytes + 2 * kMostPathBytes));
  std::erase_if(settings.runtime_options, [](const auto& option) { return option.first == "cluster"; });
  VMEM_ASSIGN(const auto own, LocalCluster::start(settings, {.memory_bytes = lent}));
  settings.runtime_options.emplace_back("cluster", own.address());
  Context part = context.with(settings);
  VMEM_ASSIGN(const auto registry, runtime::RegistryClient::open({own.address(), ""}, kRegistryUs));
  VMEM_ASSIGN(const std::vector<ClusterNode> nodes, runtime::list_nodes(*registry));
  const ClusterNode& first = nodes.front();
  VMEM_ASSIGN(const Samples path, measure_path(part, first.record.addresses.front(), lent));

  std::optional<SecondNode> second;  // lives as long as the program
  VMEM_ASSIGN(const Session session, Session::start(settings, sizes, context.gpu));
  VMEM_ASSIGN(RegionReader reader, RegionReader::create(part));
  VMEM_ASSIGN(const Region region,
              Region::allocate(sizes.working_set_bytes, context.gpu.ordinal(), reader.stream().get()));
  VMEM_TRY(fill_region(part, region, reader.stream(), settings.seed));
  VMEM_TRY(reader.read(region));  // what does not fit is at the daemon then
  VMEM_ASSIGN(const std::uint64_t budget, budget_bytes());
  VMEM_ASSIGN(second, SecondNode::start_in(own.address(), settings, lent));
  VMEM_TRY(wait_for_room_beyond(budget));
  VMEM_ASSIGN(const Options options, options_named(settings, {"remote_wait"}));
  Drains drains{.context = part,
                .region = region,
                .reader = reader,
                .registry = *registry,
                .path = path,
                .deadline_s = double(options.remote_wait_us) / 1e6};
  VMEM_ASSIGN(const NodeId other, id_of_other(*registry, first.id));
  VMEM_TRY(drain_once(drains, first.id, 0));
  return drain_once(drains, other, kUnbounded);
}

}  // namespace vmem::bench
