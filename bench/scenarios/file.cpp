// file: loads any file into a region piece by piece, then computes its byte histogram and checksum
// on the GPU, piece by piece, and compares them with the CPU's results from reading the file. The
// limit is the bare copy.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/sizes.hpp"
#include "bench/copy_limit.hpp"
#include "bench/kernels/twins.hpp"
#include "bench/pattern.hpp"
#include "bench/scenarios/streaming.hpp"

namespace vmem::bench {
namespace {

constexpr double kDefaultRatio = 4;
constexpr std::uint64_t kPieceBytes = std::uint64_t{32} << 20;
// The checksum takes 16 bytes at a time; a file's end is padded with zeros.
constexpr std::uint64_t kAlignment = 16;

std::unexpected<Error> cannot_read(const std::string& path, int error) {
  return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--input {} cannot be read: {}", path, std::strerror(error)),
              error);
}

class InputFile {
 public:
  static Result<InputFile> open(const std::string& path) {
    InputFile file(path);
    file.descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status{};
    if (file.descriptor_ < 0 || fstat(file.descriptor_, &status) != 0) return cannot_read(path, errno);
    if (!S_ISREG(status.st_mode))
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--input {} is not a regular file; name one", path));
    if (status.st_size == 0)
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--input {} is empty; name a file with contents", path));
    file.bytes_ = static_cast<std::uint64_t>(status.st_size);
    return file;
  }
  InputFile(InputFile&& other) noexcept
      : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)), bytes_(other.bytes_) {}
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }

  std::uint64_t bytes() const { return bytes_; }
  Status read(std::uint64_t offset, std::uint8_t* out, std::uint64_t bytes) const {
    while (bytes > 0) {
      const ssize_t got = pread(descriptor_, out, bytes, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return cannot_read(path_, errno);
      if (got == 0)
        return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--input {} became shorter while it was read", path_));
      offset += static_cast<std::uint64_t>(got), out += got, bytes -= static_cast<std::uint64_t>(got);
    }
    return {};
  }

 private:
  explicit InputFile(std::string path) : path_(std::move(path)) {}
  std::string path_;
  int descriptor_ = -1;
  std::uint64_t bytes_ = 0;
};

// Result of both sides. On the GPU: 256 bins, then the checksum.
struct Digest {
  std::array<std::uint64_t, 257> words{};

  std::uint64_t* bins() { return words.data(); }
  std::uint64_t checksum() const { return words[256]; }
  bool operator==(const Digest&) const = default;
};

std::uint64_t padded(std::uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Fills the region from the file and computes the CPU's result into `digest`. Returns the seconds
// spent in vmem_write.
Result<double> load_file(Context& context, const InputFile& file, const Region& region, Digest& digest) {
  std::vector<std::uint64_t> piece(kPieceBytes / 8);
  auto* const bytes = reinterpret_cast<std::uint8_t*>(piece.data());
  double seconds = 0;
  context.progress.begin("loading", file.bytes());
  for (std::uint64_t offset = 0; offset < file.bytes(); offset += kPieceBytes) {
    const std::uint64_t length = std::min(kPieceBytes, file.bytes() - offset);
    VMEM_TRY(file.read(offset, bytes, length));
    std::memset(bytes + length, 0, padded(length) - length);
    twins::histogram(bytes, length, digest.bins());
    twins::checksum(piece.data(), offset / 8, padded(length) / 8, &digest.words[256]);
    const Stopwatch watch;
    VMEM_TRY(check(vmem_write(region.at(offset), bytes, padded(length))));
    seconds += watch.seconds();
    context.progress.advance(length);
  }
  return seconds;
}

// One pass over the region on the GPU.
Status queue_digest(Context& context, const Region& region, std::uint64_t file_bytes, CUstream stream,
                    std::uint64_t* result) {
  const Launcher& launcher = context.launcher;
  const unsigned grid = launcher.full_grid();
  return for_each_chunk(context, region, [&](std::uint64_t offset, std::uint64_t bytes) {
    const std::uint64_t in_file = std::min(bytes, file_bytes - std::min(file_bytes, offset));
    return with_range(region.at(offset), bytes, VMEM_READ, stream, [&]() -> Status {
      VMEM_TRY(launcher.launch(kernels::histogram, grid, stream, region.at(offset), in_file, result));
      return launcher.launch(kernels::checksum, grid, stream, region.words(offset), offset / 8, bytes / 8,
                             result + 256);
    });
  });
}

Result<double> digest_region(Context& context, const Region& region, std::uint64_t file_bytes, const Stream& stream,
                             const ResultWords& result, Digest& digest) {
  VMEM_TRY(result.clear(stream.get()));
  VMEM_TRY(stream.synchronize());
  context.progress.begin("reading on the GPU", region.bytes());
  const Stopwatch watch;
  VMEM_TRY(queue_digest(context, region, file_bytes, stream.get(), result.device()));
  VMEM_TRY(stream.synchronize());
  const double rate = static_cast<double>(file_bytes) / watch.nanoseconds();
  VMEM_TRY(result.read(stream, digest.words.data()));
  return rate;
}

// The first byte at which the region differs from the file.
Result<std::string> find_difference(const InputFile& file, const Region& region) {
  std::vector<std::uint8_t> expected(kPieceBytes);
  std::vector<std::uint8_t> found(kPieceBytes);
  for (std::uint64_t offset = 0; offset < file.bytes(); offset += kPieceBytes) {
    const std::uint64_t length = std::min(kPieceBytes, file.bytes() - offset);
    VMEM_TRY(file.read(offset, expected.data(), length));
    VMEM_TRY(check(vmem_read(found.data(), region.at(offset), length)));
    const auto at =
        std::mismatch(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(length), found.begin()).first;
    if (const auto place = static_cast<std::uint64_t>(at - expected.begin()); place < length)
      return fmt::format("first bad byte offset {}", offset + place);
  }
  return std::string("the region equals the file now, so a kernel saw an older or unfinished page");
}

Result<std::string> compare(const Digest& cpu, const Digest& gpu, const InputFile& file, const Region& region) {
  if (cpu == gpu) return std::string();
  VMEM_ASSIGN(const std::string where, find_difference(file, region));
  return fmt::format("checksum on the GPU {:#018x}, on the CPU {:#018x}, histograms {}; {}", gpu.checksum(),
                     cpu.checksum(),
                     std::equal(cpu.words.begin(), cpu.words.end() - 1, gpu.words.begin()) ? "equal" : "differ", where);
}

Status measure_file(Context& context, const InputFile& file, const Sizes& sizes, Record& record) {
  VMEM_ASSIGN(CopyLimit limit, CopyLimit::create(context.gpu));
  VMEM_ASSIGN(const Session session, Session::start(context.settings, sizes, context.gpu));
  VMEM_ASSIGN(const Stream stream, make_stream(context.gpu));
  VMEM_ASSIGN(const Region region, Region::allocate(padded(file.bytes()), context.gpu.ordinal(), stream.get()));
  VMEM_ASSIGN(const ResultWords result, ResultWords::create(context.gpu, 257));
  Digest cpu;
  VMEM_ASSIGN(const double load_seconds, load_file(context, file, region, cpu));
  VMEM_TRY(limit.prepare(region.page_bytes(), region.bytes()));
  Samples processed;
  // As for streams: what is copied ahead behind the last piece counts, in its time.
  const auto digest = [&]() -> Result<double> {
    Digest gpu;
    VMEM_ASSIGN(const vmem_statistics before, quiet_statistics());
    const Stopwatch watch;
    VMEM_ASSIGN(const double rate, digest_region(context, region, file.bytes(), stream, result, gpu));
    processed.add(rate);
    VMEM_ASSIGN(const vmem_statistics after, quiet_statistics());
    const double nanoseconds = watch.nanoseconds();
    if (record.mismatch.empty()) {
      VMEM_ASSIGN(record.mismatch, compare(cpu, gpu, file, region));
    }
    return double(limit.crossed(traffic_between(before, after), StreamMode::read_only)) / nanoseconds;
  };
  const auto bare = [&] { return limit.rate(StreamMode::read_only); };
  VMEM_ASSIGN(const Measured measured, measure_interleaved(context.settings.repeats, bare, digest));
  record.set(measured);
  record.details["processed_gb_per_s"] = processed.median();
  record.details["processed_spread"] = processed.spread();
  record.limit_name = limit.name(StreamMode::read_only);
  record.verified = record.mismatch.empty();
  record.options["page_bytes"] = region.page_bytes();
  record.details["load_gb_per_s"] = static_cast<double>(file.bytes()) / load_seconds / 1e9;
  record.details["checksum"] = fmt::format("{:016x}", cpu.checksum());
  record.notes.push_back(fmt::format("{}, checksum {:016x}{}; loaded with vmem_write at {:.2f} GB/s",
                                     format_bytes(file.bytes()), cpu.checksum(),
                                     record.verified ? ", histogram and checksum equal the CPU's" : "",
                                     static_cast<double>(file.bytes()) / load_seconds / 1e9));
  return {};
}

}  // namespace

Status run_file(Context& context) {
  VMEM_ASSIGN(const InputFile file, InputFile::open(context.settings.input));
  if (context.settings.working_set_bytes)
    return fail(VMEM_ERROR_INVALID_OPTION, "the file is the working set; leave out --working-set");
  VMEM_ASSIGN(const Sizes sizes, plan_sizes_for(file.bytes(), context.settings, context.gpu, kDefaultRatio));
  Record record;
  record.scenario = "file";
  record.variant = ratio_text(sizes.ratio);
  record.options = size_options(context.settings, sizes);
  record.options["file_bytes"] = file.bytes();
  record.unit = "GB/s";
  VMEM_TRY(measure_file(context, file, sizes, record));
  context.records.push_back(std::move(record));
  return {};
}

}  // namespace vmem::bench
