#include "bench/scenarios/streaming.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/sizes.hpp"
#include "bench/pattern.hpp"

namespace vmem::bench {
namespace {

// Bytes per sample: at least half a second on a fast link, and on an emulated one.
constexpr std::uint64_t kSampleBytes = std::uint64_t{32} << 30;
constexpr std::uint64_t kSampleBytesEmulated = std::uint64_t{512} << 20;

int choose_passes(const Context& context, std::uint64_t working_set_bytes) {
  if (context.settings.passes > 0) return context.settings.passes;
  const std::uint64_t sample = context.gpu.emulated() ? kSampleBytesEmulated : kSampleBytes;
  return static_cast<int>(std::clamp<std::uint64_t>(sample / working_set_bytes, 1, 1000));
}

// One region being processed: state shared by the passes.
struct Work {
  Context& context;
  const Region& region;
  const Stream& stream;
  const ResultWords& sum;
  StreamMode mode;
  StreamLimit& limit;
  std::uint64_t increments = 0;  // made to every word so far
};

// Acquire, launch, release for every chunk, as a user would: nothing waits between chunks.
Status queue_pass(Work& work) {
  const Launcher& launcher = work.context.launcher;
  const bool write = work.mode == StreamMode::read_write;
  if (write) ++work.increments;
  return for_each_chunk(work.context, work.region, [&](std::uint64_t offset, std::uint64_t bytes) {
    std::uint64_t* words = work.region.words(offset);
    const CUstream stream = work.stream.get();
    return with_range(words, bytes, write ? VMEM_READ_WRITE : VMEM_READ, stream, [&]() -> Status {
      if (write) return launcher.launch(kernels::increment, launcher.full_grid(), stream, words, bytes / 8, 1);
      return launcher.launch(kernels::checksum, launcher.full_grid(), stream, words, offset / 8, bytes / 8,
                             work.sum.device());
    });
  });
}

struct Passes {
  double seconds = 0;        // of the work
  double until_quiet_s = 0;  // until the last copy made ahead for a next pass was done, too
  std::uint64_t sum = 0;     // the passes' combined checksum
};

Result<Passes> time_passes(Work& work, int passes) {
  VMEM_TRY(work.sum.clear(work.stream.get()));
  VMEM_TRY(work.stream.synchronize());
  work.context.progress.begin("streaming", work.region.bytes() * static_cast<std::uint64_t>(passes));
  const Stopwatch watch;
  for (int pass = 0; pass < passes; ++pass) VMEM_TRY(queue_pass(work));
  VMEM_TRY(work.stream.synchronize());
  Passes done;
  done.seconds = watch.seconds();
  VMEM_TRY(check(vmem_quiesce()));
  done.until_quiet_s = watch.seconds();
  VMEM_TRY(work.sum.read(work.stream, &done.sum));
  return done;
}

// One sample: adds up its time and traffic, and compares its checksum. Nothing moves before it or
// behind it, so its bytes crossed the link in its time, and the limit's copies have the link to
// themselves.
Result<double> sample_passes(Work& work, Streamed& streamed, std::uint64_t pass_checksum) {
  VMEM_ASSIGN(const vmem_statistics before, quiet_statistics());
  VMEM_ASSIGN(const Passes passes, time_passes(work, streamed.passes));
  VMEM_ASSIGN(const vmem_statistics after, read_statistics());
  const std::uint64_t bytes = work.region.bytes() * static_cast<std::uint64_t>(streamed.passes);
  const Traffic traffic = traffic_between(before, after);
  streamed.traffic += traffic;
  streamed.seconds += passes.until_quiet_s;
  streamed.bytes += bytes;
  if (work.mode == StreamMode::read_only && streamed.mismatch.empty()) {
    const std::uint64_t expected = pass_checksum * static_cast<std::uint64_t>(streamed.passes);
    VMEM_ASSIGN(streamed.mismatch, explain_checksum(work.context, work.region, work.stream, work.context.settings.seed,
                                                    passes.sum, expected));
  }
  const double directions = work.mode == StreamMode::read_write ? 2 : 1;
  streamed.processed.add(directions * static_cast<double>(bytes) / passes.seconds / 1e9);
  return static_cast<double>(work.limit.crossed(traffic, work.mode)) / passes.until_quiet_s / 1e9;
}

Status measure_work(Work& work, Streamed& streamed) {
  const std::uint64_t seed = work.context.settings.seed;
  VMEM_TRY(fill_region(work.context, work.region, work.stream, seed));
  const std::uint64_t pass_checksum =
      work.mode == StreamMode::read_only ? expected_checksum(seed, work.region.bytes() / 8) : 0;
  VMEM_TRY(time_passes(work, 1));  // warm-up: reaches the steady state
  const std::uint64_t sample_bytes = work.region.bytes() * static_cast<std::uint64_t>(streamed.passes);
  VMEM_TRY(work.limit.prepare(work.region.page_bytes(), sample_bytes));
  const auto bare = [&] { return work.limit.rate(work.mode); };
  const auto achieved = [&] { return sample_passes(work, streamed, pass_checksum); };
  VMEM_ASSIGN(streamed.rates, measure_interleaved(work.context.settings.repeats, bare, achieved));
  if (!streamed.mismatch.empty()) return {};
  VMEM_ASSIGN(streamed.mismatch, verify_region(work.context, work.region, work.stream, seed, work.increments));
  return {};
}

}  // namespace

Result<Streamed> measure_stream(Context& context, const Sizes& sizes, StreamMode mode, StreamLimit& limit) {
  VMEM_ASSIGN(const Session session, Session::start(context.settings, sizes, context.gpu));
  VMEM_ASSIGN(const Stream stream, make_stream(context.gpu));
  VMEM_ASSIGN(const Region region, Region::allocate(sizes.working_set_bytes, context.gpu.ordinal(), stream.get()));
  VMEM_ASSIGN(const ResultWords sum, ResultWords::create(context.gpu, 1));
  Streamed streamed;
  streamed.page_bytes = region.page_bytes();
  streamed.chunk_bytes = chunk_bytes(context.settings, region);
  streamed.passes = choose_passes(context, region.bytes());
  Work work{context, region, stream, sum, mode, limit};
  VMEM_TRY(measure_work(work, streamed));
  return streamed;
}

Record stream_record(const Context& context, const Sizes& sizes, StreamMode mode, const StreamLimit& limit,
                     const Streamed& streamed) {
  const bool write = mode == StreamMode::read_write;
  Record record;
  record.variant = fmt::format("{} {}", write ? "read-write" : "read-only", ratio_text(sizes.ratio));
  record.options = stream_options(context, sizes, streamed);
  record.options["mode"] = write ? "rw" : "ro";
  record.unit = "GB/s";
  record.limit_name = limit.name(mode);
  record.set(streamed.rates);
  record.mismatch = streamed.mismatch;
  record.verified = streamed.mismatch.empty();
  add_traffic(record, streamed);
  return record;
}

nlohmann::json stream_options(const Context& context, const Sizes& sizes, const Streamed& streamed) {
  auto options = size_options(context.settings, sizes);
  options["page_bytes"] = streamed.page_bytes;
  options["chunk_bytes"] = streamed.chunk_bytes;
  options["passes"] = streamed.passes;
  return options;
}

void add_traffic(Record& record, const Streamed& streamed) {
  record.details["processed_gb_per_s"] = streamed.processed.median();
  record.details["processed_spread"] = streamed.processed.spread();
  record.details["moved_in_bytes"] = streamed.traffic.in_bytes;
  record.details["moved_out_bytes"] = streamed.traffic.out_bytes;
  record.details["dropped_bytes"] = streamed.traffic.dropped_bytes;
  record.details["processed_bytes"] = streamed.bytes;
  record.details["hit_share"] = streamed.hit_share();
  record.details["in_place_acquires"] = streamed.traffic.in_place_acquires;
  record.details["acquire_waits"] = streamed.traffic.waits;
  record.details["mover_busy_share"] = double(streamed.traffic.mover_busy_us) / 1e6 / streamed.seconds;
  record.notes.push_back(fmt::format(
      "{}: pages of {}; the program worked at {:.2f} GB/s; {:.1f} % of its bytes stayed where they were, in HBM "
      "or used in place; limit spread {:.1f} %",
      record.variant, format_bytes(streamed.page_bytes), streamed.processed.median(), 100 * streamed.hit_share(),
      100 * streamed.rates.limit.spread()));
}

std::string ratio_text(double ratio) { return fmt::format("{:g}x", std::round(ratio * 100) / 100); }

}  // namespace vmem::bench
