// Rows of a page of a published region that is fetched alone: nothing else is in flight. A daemon
// has the page; it is timed until it is in HBM. The limit is a request and a page by plain sockets,
// and a bare copy to HBM, each before one of the timed pages.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <numeric>
#include <random>
#include <vector>

#include "base/sizes.hpp"
#include "bench/round_trip.hpp"
#include "bench/scenarios/cluster/rows.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kPage = 2 * kMiB;
constexpr std::uint64_t kMostPages = 512;
constexpr double kOfLimit = 1.25;

// Time of this machine's cores since its start, in ticks.
struct CoreTime {
  double idle = 0, all = 0;
};
CoreTime read_core_time() {
  std::ifstream in("/proc/stat");
  std::string label;
  in >> label;
  CoreTime time;
  double ticks = 0;
  // user nice system idle iowait irq softirq steal
  for (int field = 0; field < 8 && in >> ticks; ++field) {
    time.all += ticks;
    if (field == 3 || field == 4) time.idle += ticks;
  }
  return time;
}
double idle_share(const CoreTime& before, const CoreTime& after) {
  return after.all == before.all ? 0 : (after.idle - before.idle) / (after.all - before.all);
}

// The limit's side: a page by a plain socket, and a copy of it to HBM.
class BarePage {
 public:
  static Result<BarePage> create(const Context& context, std::uint64_t bytes) {
    const std::string& server = context.settings.page_server;
    VMEM_ASSIGN(const NodePath path, path_here(context.settings));
    auto trip = server.empty() ? RoundTrip::start(path.sockets, bytes) : RoundTrip::connect(server);
    if (!trip) return std::unexpected(trip.error());
    VMEM_ASSIGN(gpu::PinnedBuffer memory, allocate_pinned(context.gpu, bytes));
    VMEM_ASSIGN(DeviceMemory device, allocate_device(context.gpu, bytes));
    VMEM_ASSIGN(Stream stream, make_stream(context.gpu));
    return BarePage(context.gpu, std::move(*trip), std::move(memory), std::move(device), std::move(stream), bytes);
  }
  const std::string& name() const { return trip_.name(); }

  // Milliseconds of both parts.
  struct Times {
    double trip_ms = 0, copy_ms = 0;
  };
  Result<Times> fetch() const {
    Times times;
    Stopwatch watch;
    VMEM_TRY(trip_.fetch({static_cast<std::byte*>(memory_.data()), bytes_}));
    times.trip_ms = watch.seconds() * 1e3;
    watch = {};
    BENCH_CALL(*gpu_, cuMemcpyHtoDAsync, device_.get(), memory_.data(), bytes_, stream_.get());
    VMEM_TRY(stream_.synchronize());
    times.copy_ms = watch.seconds() * 1e3;
    return times;
  }

 private:
  BarePage(const Gpu& gpu, RoundTrip trip, gpu::PinnedBuffer memory, DeviceMemory device, Stream stream,
           std::uint64_t bytes)
      : gpu_(&gpu),
        trip_(std::move(trip)),
        memory_(std::move(memory)),
        device_(std::move(device)),
        stream_(std::move(stream)),
        bytes_(bytes) {}

  const Gpu* gpu_;
  RoundTrip trip_;
  gpu::PinnedBuffer memory_;
  DeviceMemory device_;
  Stream stream_;
  std::uint64_t bytes_;
};

struct Fetches {
  Samples bare, trip, copy, achieved;  // milliseconds
  double idle_share = 0;
  std::uint64_t fetched_pages = 0;  // more than were timed: some came ahead of their use
  std::string mismatch;
};

// Pages in random order, which nothing foresees. A kernel sums each up once it was timed.
Status fetch_all(Context& context, const Region& region, const BarePage& bare, Fetches& fetches) {
  VMEM_ASSIGN(const Stream stream, make_stream(context.gpu));
  VMEM_ASSIGN(const ResultWords sum, ResultWords::create(context.gpu, 1));
  VMEM_TRY(sum.clear(stream.get()));
  VMEM_TRY(stream.synchronize());
  std::vector<std::uint64_t> pages(region.bytes() / region.page_bytes());
  std::iota(pages.begin(), pages.end(), 0);
  std::ranges::shuffle(pages, std::mt19937_64(context.settings.seed));
  VMEM_ASSIGN(const vmem_published_statistics before, read_published_statistics());
  const CoreTime begun = read_core_time();
  for (const std::uint64_t page : pages) {
    VMEM_ASSIGN(const BarePage::Times times, bare.fetch());
    fetches.trip.add(times.trip_ms);
    fetches.copy.add(times.copy_ms);
    fetches.bare.add(times.trip_ms + times.copy_ms);
    const std::uint64_t offset = page * region.page_bytes();
    const Stopwatch watch;
    const auto queue = [&]() -> Status {
      VMEM_TRY(stream.synchronize());
      fetches.achieved.add(watch.seconds() * 1e3);
      return context.launcher.launch(kernels::checksum, context.launcher.full_grid(), stream.get(),
                                     region.words(offset), offset / 8, region.page_bytes() / 8, sum.device());
    };
    VMEM_TRY(with_range(region.at(offset), region.page_bytes(), VMEM_READ, stream.get(), queue));
    VMEM_TRY(stream.synchronize());
    context.progress.advance();
  }
  fetches.idle_share = idle_share(begun, read_core_time());
  VMEM_ASSIGN(const vmem_published_statistics after, read_published_statistics());
  fetches.fetched_pages = after.fetched_pages - before.fetched_pages;
  std::uint64_t found = 0;
  VMEM_TRY(sum.read(stream, &found));
  const std::uint64_t expected = expected_checksum(context.settings.seed, region.bytes() / 8);
  VMEM_ASSIGN(fetches.mismatch, explain_checksum(context, region, stream, context.settings.seed, found, expected));
  return {};
}

void add_record(Context& context, const Fetches& fetches, const BarePage& bare, std::uint64_t page_bytes,
                double quantile) {
  const bool is_median = quantile == 0.5;
  const auto of = [&](const Samples& samples) { return is_median ? samples.median() : samples.quantile(quantile); };
  Record record;
  record.scenario = "cluster";
  record.variant = fmt::format("one page of {}, {}", format_bytes(page_bytes), is_median ? "median" : "p99");
  record.options = {{"page_bytes", page_bytes},
                    {"pages", fetches.achieved.count()},
                    {"page_server", context.settings.page_server},
                    {"seed", context.settings.seed}};
  record.unit = "ms";
  record.limit_name = fmt::format("round trip of a page by {}, and a copy to HBM", bare.name());
  record.limit_is = Record::LimitIs::reference;
  record.limit = of(fetches.bare);
  record.achieved = of(fetches.achieved);
  const bool over_link = !context.settings.page_server.empty();
  record.goal = Goal{Goal::Bound::at_most, kOfLimit, true, over_link ? Goal::Needs::host : Goal::Needs::link};
  record.details = {{"round_trip_ms", of(fetches.trip)},
                    {"copy_ms", of(fetches.copy)},
                    {"idle_share", fetches.idle_share},
                    {"fetched_pages", fetches.fetched_pages}};
  record.mismatch = fetches.mismatch;
  record.verified = record.mismatch.empty();
  if (is_median)
    record.notes.push_back(fmt::format(
        "{}: {} pages; {:.0f} % of the cores' time was idle; the goal is {}", record.variant, fetches.achieved.count(),
        100 * fetches.idle_share,
        over_link ? "judged over the link to --page-server"
                  : "judged over a link with a rate alone (--page-server): here both processes share the cores"));
  context.records.push_back(std::move(record));
}

}  // namespace

Status measure_one_page(Context& context) {
  Settings settings = context.settings;
  if (!settings.page_bytes) settings.page_bytes = kPage;
  const std::uint64_t page_bytes = *settings.page_bytes;
  const std::uint64_t pages = std::clamp<std::uint64_t>(working_set_bytes(settings) / page_bytes, 2, kMostPages);
  const std::uint64_t bytes = pages * page_bytes;
  VMEM_TRY(check_host_memory("cluster", 2 * bytes));  // here and at the daemon
  VMEM_ASSIGN(const auto own, cluster_for(settings, {.copies_bytes = bytes + 64 * kMiB}));
  if (own && !settings.page_server.empty())
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("--page-server {}: the daemon has to be there, too; name its cluster (VMEM_CLUSTER)",
                            settings.page_server));
  Context part = context.with(settings);
  VMEM_ASSIGN(const BarePage bare, BarePage::create(part, page_bytes));
  VMEM_ASSIGN(const Session session,
              Session::start(settings, sizes_in_memory(settings, context.gpu, bytes), context.gpu));
  const std::string name = name_of_region("pages");
  {
    VMEM_ASSIGN(const Stream stream, make_stream(context.gpu));
    VMEM_ASSIGN(const Region published, publish_pattern(part, stream, name, bytes, 1));
  }
  VMEM_ASSIGN(const Region region, Region::open(name, context.gpu.ordinal()));
  context.progress.begin("cluster one page", pages);
  Fetches fetches;
  VMEM_TRY(fetch_all(part, region, bare, fetches));
  for (const double quantile : {0.5, 0.99}) add_record(part, fetches, bare, page_bytes, quantile);
  return {};
}

}  // namespace vmem::bench
