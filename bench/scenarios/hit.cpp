// hit: acquire and release of ranges resident in HBM, without GPU work between: the runtime's
// overhead per launch when nothing moves. Measures one thread's latency, and the rate of eight
// threads on streams of their own.
#include <fmt/format.h>
#include <sys/resource.h>
#include <time.h>

#include <array>
#include <atomic>
#include <latch>
#include <thread>
#include <vector>

#include "base/sizes.hpp"
#include "bench/machine.hpp"
#include "bench/pattern.hpp"
#include "bench/runtime.hpp"
#include "bench/samples.hpp"
#include "bench/scenarios/streaming.hpp"

namespace vmem::bench {
namespace {

constexpr unsigned kThreads = 8;
constexpr int kBatch = 64;  // pairs timed together: the clock costs as much as a pair
constexpr int kBatches = 4000;
constexpr double kWarmSeconds = 0.1;  // clocks rise, and the mover goes to sleep after the page-in
constexpr double kThreadSeconds = 0.1;
constexpr int kThreadTurns = 3;  // for each of --repeats
constexpr Goal kLatencyGoal{Goal::Bound::at_most, 150, false};
constexpr Goal kThreadsGoal{Goal::Bound::at_least, 6.0 / kThreads, true};

Status acquire_release(const vmem_range& range, CUstream stream) {
  if (const vmem_status status = vmem_acquire(&range, 1, stream); status != VMEM_OK) return check(status);
  return check(vmem_release(&range, 1, stream));
}

Status run_batch(const vmem_range& range, CUstream stream) {
  for (int i = 0; i < kBatch; ++i) VMEM_TRY(acquire_release(range, stream));
  return {};
}

// The minimum work of any safe lock-free acquire: publish the hold, clear it, and query whether
// the stream is capturing. Shows the machine's speed while the pairs were timed.
constexpr const char* kFloorName = "two atomic stores and one cuStreamIsCapturing";
Status run_floor_batch(const Gpu& gpu, std::atomic<std::uint64_t>& word, CUstream stream) {
  for (std::uint64_t i = 0; i < kBatch; ++i) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    word.store(i, std::memory_order_release);
    BENCH_CALL(gpu, cuStreamIsCapturing, stream, &status);
    word.store(0, std::memory_order_release);
  }
  return {};
}

// Nanoseconds of a pair and of its minimum work, alternating, one sample per batch.
Result<Measured> time_pairs(const Gpu& gpu, const vmem_range& range, CUstream stream) {
  Measured measured;
  alignas(128) std::atomic<std::uint64_t> word = 0;
  for (const Stopwatch warm; warm.seconds() < kWarmSeconds;) VMEM_TRY(run_batch(range, stream));
  for (int batch = 0; batch < kBatches; ++batch) {
    const Stopwatch watch;
    VMEM_TRY(run_batch(range, stream));
    measured.achieved.add(watch.nanoseconds() / kBatch);
    const Stopwatch floor_watch;
    VMEM_TRY(run_floor_batch(gpu, word, stream));
    measured.limit.add(floor_watch.nanoseconds() / kBatch);
  }
  return measured;
}

// Work without sharing, about as long as a pair. Its scaling shows what the machine's cores achieve
// together.
class alignas(128) PrivateWork {
 public:
  static constexpr std::size_t kWords = 128;

  Status run_batch() {
    for (int i = 0; i < kBatch; ++i)
      for (std::uint64_t& word : words_) word = word * 0x9e3779b97f4a7c15 + 1;
    return {};
  }

 private:
  std::array<std::uint64_t, kWords> words_{};
};

// Measures one thread of a concurrent measurement: units per second, where `batch(i, stream)` runs
// kBatch units.
template <class Batch>
Result<double> time_rate(const Gpu& gpu, const Batch& batch, std::size_t i, CUstream stream, std::latch& start) {
  Status ready = gpu.make_current();
  if (ready) ready = batch(i, stream);
  start.arrive_and_wait();  // even after a failure: the others wait here
  VMEM_TRY(ready);
  const Stopwatch watch;
  double done = 0;
  for (; watch.seconds() < kThreadSeconds; done += kBatch) VMEM_TRY(batch(i, stream));
  return done / watch.seconds();
}

// Units per second of threads `begin` to `end` together, each with its own stream.
template <class Batch>
Result<double> time_threads(const Gpu& gpu, std::size_t begin, std::size_t end, const Batch& batch) {
  std::vector<Stream> streams;
  for (std::size_t i = begin; i < end; ++i) {
    VMEM_ASSIGN(auto stream, make_stream(gpu));
    streams.push_back(std::move(stream));
  }
  std::vector<Result<double>> rates(end - begin);
  std::latch start(static_cast<std::ptrdiff_t>(end - begin));
  {
    std::vector<std::jthread> threads;
    threads.reserve(end - begin);
    for (std::size_t i = begin; i < end; ++i)
      threads.emplace_back([&, i] { rates[i - begin] = time_rate(gpu, batch, i, streams[i - begin].get(), start); });
  }
  double total = 0;
  for (auto& rate : rates) {
    if (!rate) return std::unexpected(std::move(rate).error());
    total += *rate;
  }
  return total;
}

// The sum of what `count` threads reach one after the other, each with the work that it has when
// all run together.
template <class Batch>
Result<double> time_each_alone(const Gpu& gpu, std::size_t count, const Batch& batch) {
  double total = 0;
  for (std::size_t i = 0; i < count; ++i) {
    VMEM_ASSIGN(const double rate, time_threads(gpu, i, i + 1, batch));
    total += rate;
  }
  return total;
}

// Competing activity: CPU time of the process's other threads, and preemptions of the measuring
// thread.
class CpuUse {
 public:
  void add_to(nlohmann::json& details) const {
    const Snapshot now;
    details["other_threads_cpu_seconds"] = (now.process - start_.process) - (now.thread - start_.thread);
    details["preemptions"] = now.preemptions - start_.preemptions;
  }

 private:
  struct Snapshot {
    static long involuntary_switches() {
      rusage usage{};
      (void)getrusage(RUSAGE_THREAD, &usage);  // does not fail for the caller itself
      return usage.ru_nivcsw;
    }
    static double seconds_of(clockid_t clock) {
      timespec now{};
      (void)clock_gettime(clock, &now);
      return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
    }
    double process = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    double thread = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    long preemptions = involuntary_switches();
  };
  const Snapshot start_;
};

vmem_range whole(const Region& region) { return {region.at(0), region.bytes(), VMEM_READ, 0}; }

struct Setting {
  Context& context;
  const Sizes& sizes;
  const Stream& stream;
};

Record start_record(const Setting& setting, std::string variant, const Region& region, std::uint64_t range_bytes) {
  Record record;
  record.scenario = "hit";
  record.variant = std::move(variant);
  record.options = size_options(setting.context.settings, setting.sizes);
  record.options["region_bytes"] = region.bytes();
  record.options["range_bytes"] = range_bytes;
  record.options["page_bytes"] = region.page_bytes();
  return record;
}

// Runs `body` and marks the record: a figure counts only if every acquire in it was a hit.
template <class Body>
Status measure_hits(Record& record, Body&& body) {
  VMEM_TRY(check(vmem_quiesce()));
  VMEM_ASSIGN(const vmem_statistics before, read_statistics());
  VMEM_TRY(body());
  VMEM_ASSIGN(const vmem_statistics after, read_statistics());
  const std::uint64_t misses = after.acquire_misses - before.acquire_misses;
  record.details["acquire_misses"] = misses;
  record.verified = misses == 0;
  if (misses > 0) record.mismatch = fmt::format("{} acquires were no hits", misses);
  return {};
}

Status add_latency(const Setting& setting, std::string variant, const Region& region, const vmem_range& range) {
  Record record = start_record(setting, std::move(variant), region, range.bytes);
  record.unit = "ns";
  record.goal = kLatencyGoal;
  VMEM_TRY(acquire_release(range, setting.stream.get()));  // pages the range in
  VMEM_TRY(setting.stream.synchronize());
  VMEM_TRY(measure_hits(record, [&]() -> Status {
    const CpuUse use;
    VMEM_ASSIGN(const Measured measured, time_pairs(setting.context.gpu, range, setting.stream.get()));
    use.add_to(record.details);
    const Samples& samples = measured.achieved;
    record.limit_name = kFloorName;
    record.limit = measured.limit.median();
    record.set_achieved(samples);
    record.details["limit_quartiles"] = measured.limit.quartiles();
    record.details["p99_ns"] = samples.quantile(0.99);
    record.details["batch_pairs"] = kBatch;
    record.notes.push_back(
        fmt::format("{}: median {:.0f} ns, 99th percentile {:.0f} ns of batches of {}; {} took {:.0f} ns",
                    record.variant, samples.median(), samples.quantile(0.99), kBatch, kFloorName, *record.limit));
    return {};
  }));
  setting.context.records.push_back(std::move(record));
  return {};
}

Status add_threads(const Setting& setting, std::string variant, const Region& region,
                   const std::vector<vmem_range>& ranges) {
  Record record = start_record(setting, std::move(variant), region, ranges.front().bytes);
  record.unit = "M/s";
  record.limit_name = fmt::format("the sum of the {} threads, each alone", ranges.size());
  record.goal = kThreadsGoal;
  const std::size_t threads = ranges.size();
  const Gpu& gpu = setting.context.gpu;
  const auto pairs = [&](std::size_t i, CUstream stream) { return run_batch(ranges[i], stream); };
  std::vector<PrivateWork> work(threads);
  const auto hashes = [&](std::size_t i, CUstream) { return work[i].run_batch(); };
  Samples machine_scaling;
  VMEM_TRY(measure_hits(record, [&]() -> Status {
    const auto limit = [&]() -> Result<double> {
      VMEM_ASSIGN(const double alone, time_each_alone(gpu, threads, pairs));
      return alone / 1e6;
    };
    const auto achieved = [&]() -> Result<double> {
      VMEM_ASSIGN(const double all, time_threads(gpu, 0, threads, pairs));
      VMEM_ASSIGN(const double hashed_alone, time_threads(gpu, 0, 1, hashes));
      VMEM_ASSIGN(const double hashed, time_threads(gpu, 0, threads, hashes));
      machine_scaling.add(hashed / hashed_alone);
      return all / 1e6;
    };
    const int turns = kThreadTurns * setting.context.settings.repeats;
    VMEM_ASSIGN(const Measured measured, measure_interleaved(turns, limit, achieved));
    record.set(measured);
    return {};
  }));
  const double scaling = *record.ratio() * double(threads);
  record.details["threads"] = threads;
  record.details["scaling"] = scaling;
  record.details["machine_scaling"] = machine_scaling.median();
  record.notes.push_back(fmt::format(
      "{}: {} threads reach {:.1f} times the rate of one, on {} cores; multiplying {} words of their own each, "
      "they reach {:.1f} times",
      record.variant, threads, scaling, read_machine().cores, PrivateWork::kWords, machine_scaling.median()));
  setting.context.records.push_back(std::move(record));
  return {};
}

// A region that fits: all of it is one range.
Status measure_resident(const Setting& setting, std::uint64_t bytes) {
  VMEM_ASSIGN(const Region region, Region::allocate(bytes, setting.context.gpu.ordinal(), setting.stream.get()));
  VMEM_TRY(fill_region(setting.context, region, setting.stream, setting.context.settings.seed));
  VMEM_TRY(add_latency(setting, fmt::format("resident region of {}", format_bytes(bytes)), region, whole(region)));
  return add_threads(setting, fmt::format("{} threads, one region", kThreads), region, {kThreads, whole(region)});
}

// Several regions that fit together, one per thread.
Status measure_separate(const Setting& setting, std::uint64_t bytes) {
  std::vector<Region> regions;
  std::vector<vmem_range> ranges;
  for (unsigned i = 0; i < kThreads; ++i) {
    VMEM_ASSIGN(auto region, Region::allocate(bytes, setting.context.gpu.ordinal(), setting.stream.get()));
    regions.push_back(std::move(region));
    ranges.push_back(whole(regions.back()));
    VMEM_TRY(fill_region(setting.context, regions.back(), setting.stream, setting.context.settings.seed));
    VMEM_TRY(acquire_release(ranges.back(), setting.stream.get()));
  }
  VMEM_TRY(setting.stream.synchronize());
  return add_threads(setting, fmt::format("{} threads, own regions", kThreads), regions.front(), ranges);
}

// A region that does not fit, so that acquire checks each page of a range.
Status measure_pages(const Setting& setting, std::uint64_t bytes) {
  VMEM_ASSIGN(const Region region, Region::allocate(bytes, setting.context.gpu.ordinal(), setting.stream.get()));
  VMEM_TRY(fill_region(setting.context, region, setting.stream, setting.context.settings.seed));
  for (const std::uint64_t pages : {1, 8}) {
    const vmem_range range{region.at(0), std::min(pages * region.page_bytes(), bytes), VMEM_READ, 0};
    VMEM_TRY(add_latency(setting, fmt::format("{} page{}", pages, pages == 1 ? "" : "s"), region, range));
  }
  return {};
}

}  // namespace

Status run_hit(Context& context) {
  constexpr double kDefaultRatio = 2;
  VMEM_ASSIGN(const Sizes sizes, plan_sizes(context.settings, context.gpu, kDefaultRatio));
  VMEM_ASSIGN(const Session session, Session::start(context.settings, sizes, context.gpu));
  VMEM_ASSIGN(const Stream stream, make_stream(context.gpu));
  const Setting setting{context, sizes, stream};
  constexpr std::uint64_t kGranule = std::uint64_t{2} << 20;
  const auto part = [&](std::uint64_t divisor) {
    return std::max(sizes.hbm_bytes / divisor / kGranule * kGranule, kGranule);
  };
  VMEM_TRY(measure_pages(setting, sizes.working_set_bytes));
  VMEM_TRY(measure_resident(setting, part(2)));
  return measure_separate(setting, part(2 * kThreads));
}

}  // namespace vmem::bench
