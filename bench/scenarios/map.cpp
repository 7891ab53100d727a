// map: a file larger than HBM, mapped and read from end to end by a kernel, piece by piece:
// acquire, launch, release. The limit is the disk: the same requests into unused memory. Both sides
// bypass the page cache.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/sizes.hpp"
#include "bench/kernels/word.hpp"
#include "bench/pattern.hpp"
#include "bench/request_memory.hpp"
#include "bench/scenarios/streaming.hpp"
#include "tiers/io/uring_queue.hpp"

namespace vmem::bench {
namespace {

constexpr double kDefaultRatio = 4;
constexpr Goal kGoal{Goal::Bound::at_least, 0.90, true, Goal::Needs::host};
// As the runtime reads mapped files.
constexpr std::uint32_t kDepth = 64;
constexpr std::uint64_t kRequestBytes = 1 << 20;

std::unexpected<Error> failed(const char* what, const std::string& path, int error) {
  return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("{} {}: {}", what, path, std::strerror(error)), error);
}

// A file of the pattern, in the folder of --input or the current one; removed by the destructor.
class PatternFile {
 public:
  static Result<PatternFile> create(Context& context, std::uint64_t bytes) {
    const std::string& folder = context.settings.input.empty() ? "." : context.settings.input;
    PatternFile file(fmt::format("{}/vmem-bench-{}.bin", folder, getpid()));
    VMEM_TRY(file.write(context, bytes));
    return file;
  }
  PatternFile(PatternFile&& other) noexcept : path_(std::exchange(other.path_, {})), bytes_(other.bytes_) {}
  PatternFile& operator=(PatternFile&&) = delete;
  ~PatternFile() {
    if (!path_.empty()) unlink(path_.c_str());
  }
  const std::string& path() const { return path_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  explicit PatternFile(std::string path) : path_(std::move(path)) {}
  Status write(Context& context, std::uint64_t bytes) {
    const int descriptor = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (descriptor < 0) return failed("creating", path_, errno);
    std::vector<std::uint64_t> words(kRequestBytes / 8);
    context.progress.begin("writing the file", bytes);
    int error = 0;
    for (; bytes_ < bytes && error == 0; bytes_ += kRequestBytes) {
      for (std::uint64_t i = 0; i < words.size(); ++i) words[i] = pattern_word(context.settings.seed, bytes_ / 8 + i);
      const auto piece = static_cast<ssize_t>(kRequestBytes);  // sizes are multiples of 2 MiB
      errno = ENOSPC;
      if (::write(descriptor, words.data(), kRequestBytes) != piece) error = errno;
      context.progress.advance(kRequestBytes);
    }
    if (error == 0 && fsync(descriptor) != 0) error = errno;
    (void)posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    close(descriptor);
    if (error != 0) return failed("writing", path_, error);
    return {};
  }
  std::string path_;
  std::uint64_t bytes_ = 0;
};

// The bare disk: GB/s over the whole file, each request in flight with its own buffer.
class DiskLimit {
 public:
  static Result<DiskLimit> create(const PatternFile& file, const Gpu& gpu) {
    DiskLimit limit(file.bytes());
    limit.descriptor_ = ::open(file.path().c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (limit.descriptor_ < 0) return failed("opening for direct reads", file.path(), errno);
    VMEM_ASSIGN(limit.queue_, tiers::make_uring_queue({.files = {}, .depth = kDepth}));
    VMEM_ASSIGN(limit.memory_, as_slots(gpu, kDepth * kRequestBytes));
    return limit;
  }
  DiskLimit(DiskLimit&& other) noexcept
      : bytes_(other.bytes_),
        descriptor_(std::exchange(other.descriptor_, -1)),
        queue_(std::move(other.queue_)),
        memory_(std::move(other.memory_)) {}
  DiskLimit& operator=(DiskLimit&&) = delete;
  ~DiskLimit() {
    if (descriptor_ >= 0) close(descriptor_);
  }

  Result<double> read_all() {
    const Stopwatch watch;
    std::uint64_t asked = 0, done = 0;
    std::vector<tiers::IoResult> ended;
    for (std::uint64_t tag = 0; tag < kDepth && asked < bytes_; ++tag) push(tag, asked);
    while (done < bytes_) {
      ended.clear();
      VMEM_TRY(queue_->wait(ended, std::chrono::seconds(1)));
      for (const tiers::IoResult& each : ended) {
        if (each.result != static_cast<std::int64_t>(kRequestBytes))
          return fail(VMEM_ERROR_DRIVER, fmt::format("a direct read of {} ended with {}", kRequestBytes, each.result));
        done += kRequestBytes;
        if (asked < bytes_) push(each.tag, asked);
      }
    }
    return static_cast<double>(bytes_) / watch.nanoseconds();
  }

 private:
  explicit DiskLimit(std::uint64_t bytes) : bytes_(bytes) {}
  void push(std::uint64_t tag, std::uint64_t& asked) {
    queue_->push({.kind = tiers::Io::Kind::read,
                  .file = static_cast<std::uint32_t>(descriptor_),
                  .offset = asked,
                  .memory = memory_.get() + tag * kRequestBytes,
                  .bytes = kRequestBytes,
                  .tag = tag});
    asked += kRequestBytes;
  }
  const std::uint64_t bytes_;
  int descriptor_ = -1;
  std::unique_ptr<tiers::IoQueue> queue_;
  RequestMemory memory_;
};

struct MapRun {
  Measured rates;
  Traffic traffic;
  std::uint64_t page_bytes = 0, chunk_bytes = 0;
  std::uint64_t read_bytes = 0;         // from the file, in all passes
  std::uint64_t read_to_hbm_bytes = 0;  // of these, bypassing host memory
  std::uint64_t host_bytes_peak = 0;    // in use at the end of any piece
  std::string mismatch;
};

Result<double> read_mapped(Context& context, const Region& region, const Stream& stream, const ResultWords& sum,
                           std::uint64_t expected, MapRun& run) {
  const Launcher& launcher = context.launcher;
  VMEM_TRY(sum.clear(stream.get()));
  // Evicts for a cold start; pages that stay in HBM are not counted.
  VMEM_TRY(check(vmem_advise(region.at(0), region.bytes(), VMEM_ADVISE_EVICT)));
  VMEM_TRY(check(vmem_quiesce()));
  context.progress.begin("reading the mapping", region.bytes());
  VMEM_ASSIGN(const vmem_statistics before, read_statistics());
  const Stopwatch watch;
  const auto read_chunk = [&](std::uint64_t offset, std::uint64_t bytes) -> Status {
    VMEM_TRY(with_range(region.at(offset), bytes, VMEM_READ, stream.get(), [&] {
      return launcher.launch(kernels::checksum, launcher.full_grid(), stream.get(), region.words(offset), offset / 8,
                             bytes / 8, sum.device());
    }));
    VMEM_ASSIGN(const vmem_statistics now, read_statistics());
    run.host_bytes_peak = std::max(run.host_bytes_peak, now.host_used_bytes);
    return {};
  };
  VMEM_TRY(for_each_chunk(context, region, read_chunk));
  VMEM_TRY(stream.synchronize());
  VMEM_TRY(check(vmem_quiesce()));  // reads ahead, too: their bytes count
  const double nanoseconds = watch.nanoseconds();
  VMEM_ASSIGN(const vmem_statistics after, read_statistics());
  const double rate = static_cast<double>(after.file_read_bytes - before.file_read_bytes) / nanoseconds;
  std::uint64_t found = 0;
  VMEM_TRY(sum.read(stream, &found));
  if (found != expected && run.mismatch.empty()) {
    VMEM_ASSIGN(run.mismatch, explain_checksum(context, region, stream, context.settings.seed, found, expected));
  }
  return rate;
}

Result<MapRun> measure_map(Context& context, const Sizes& sizes, const PatternFile& file) {
  VMEM_ASSIGN(DiskLimit limit, DiskLimit::create(file, context.gpu));
  VMEM_ASSIGN(const Session session, Session::start(context.settings, sizes, context.gpu));
  VMEM_ASSIGN(const Stream stream, make_stream(context.gpu));
  VMEM_ASSIGN(const Region region, Region::map_file(file.path(), context.gpu.ordinal()));
  VMEM_ASSIGN(const ResultWords sum, ResultWords::create(context.gpu, 1));
  const std::uint64_t expected = expected_checksum(context.settings.seed, region.bytes() / 8);
  MapRun run;
  run.page_bytes = region.page_bytes();
  run.chunk_bytes = chunk_bytes(context.settings, region);
  VMEM_ASSIGN(const vmem_statistics before, read_statistics());
  VMEM_ASSIGN(run.rates, measure_interleaved(
                             context.settings.repeats, [&] { return limit.read_all(); },
                             [&] { return read_mapped(context, region, stream, sum, expected, run); }));
  VMEM_ASSIGN(const vmem_statistics after, read_statistics());
  run.traffic = traffic_between(before, after);
  run.read_bytes = after.file_read_bytes - before.file_read_bytes;
  run.read_to_hbm_bytes = after.read_to_hbm_bytes - before.read_to_hbm_bytes;
  return run;
}

}  // namespace

Status run_map(Context& context) {
  VMEM_ASSIGN(const Sizes sizes, plan_mapped_sizes(context.settings, context.gpu, kDefaultRatio));
  VMEM_ASSIGN(const PatternFile file, PatternFile::create(context, sizes.working_set_bytes));
  VMEM_ASSIGN(const MapRun run, measure_map(context, sizes, file));
  Record record;
  record.scenario = "map";
  record.variant = fmt::format("{} file", ratio_text(sizes.ratio));
  record.options = size_options(context.settings, sizes);
  record.options["page_bytes"] = run.page_bytes;
  record.options["chunk_bytes"] = run.chunk_bytes;
  record.unit = "GB/s";
  record.limit_name = fmt::format("direct reads of 1 MiB, {} at once", kDepth);
  record.goal = kGoal;
  record.set(run.rates);
  record.mismatch = run.mismatch;
  record.verified = run.mismatch.empty();
  record.details["file_read_bytes"] = run.read_bytes;
  record.details["read_to_hbm_bytes"] = run.read_to_hbm_bytes;
  record.details["moved_in_bytes"] = run.traffic.in_bytes;
  record.details["moved_out_bytes"] = run.traffic.out_bytes;
  record.details["host_used_bytes_peak"] = run.host_bytes_peak;
  record.details["in_place_acquires"] = run.traffic.in_place_acquires;
  record.notes.push_back(fmt::format("{}: pages of {}; {} of host memory in use at most, {} copied out of HBM",
                                     record.variant, format_bytes(run.page_bytes), format_bytes(run.host_bytes_peak),
                                     format_bytes(run.traffic.out_bytes)));
  context.records.push_back(std::move(record));
  return {};
}

}  // namespace vmem::bench
