#include "bench/bare_disk.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/sizes.hpp"
#include "bench/all_at_once.hpp"
#include "bench/samples.hpp"
#include "tiers/io/uring_queue.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kLargePage = std::uint64_t{2} << 20;
constexpr std::uint64_t kSpareLargePages = 8;

std::unexpected<Error> cannot(const std::string& path, const char* what, int error) {
  return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--nvme {}: {}: {}", path, what, std::strerror(error)), error);
}

// Returns the output of `command`. Errors: DRIVER, naming the command.
Result<std::string> output_of(const std::string& command) {
  std::FILE* const out = ::popen(command.c_str(), "r");
  if (out == nullptr) return fail(VMEM_ERROR_DRIVER, fmt::format("'{}': {}", command, std::strerror(errno)), errno);
  std::string text;
  char part[4096];
  for (std::size_t got = 0; (got = std::fread(part, 1, sizeof(part), out)) > 0;) text.append(part, got);
  if (const int status = ::pclose(out); status != 0)
    return fail(VMEM_ERROR_DRIVER, fmt::format("'{}' ended with status {}", command, status));
  return text;
}

}  // namespace

Result<std::unique_ptr<BareDisk>> BareDisk::create(const std::string& directory, std::uint64_t bytes,
                                                   RequestMemory memory) {
  std::unique_ptr<BareDisk> disk(new BareDisk);
  std::string path = directory + "/vmem-bench-XXXXXX";
  disk->file_ = ::mkostemp(path.data(), O_DIRECT | O_CLOEXEC);
  if (disk->file_ < 0) return cannot(directory, "cannot make a file there", errno);
  disk->path_ = path;
  disk->bytes_ = bytes / kRequestBytes * kRequestBytes;
  if (::fallocate(disk->file_, 0, 0, off_t(disk->bytes_)) != 0 && errno != EOPNOTSUPP)
    return cannot(directory, fmt::format("no room for {}", format_bytes(bytes)).c_str(), errno);
  disk->memory_ = std::move(memory);
  VMEM_ASSIGN(disk->queue_, tiers::make_uring_queue({.files = {disk->file_}, .depth = kDepth}));
  VMEM_TRY(disk->loop(DiskWay::out));
  return disk;
}

BareDisk::~BareDisk() {
  if (file_ < 0) return;
  (void)::unlink(path_.c_str());
  ::close(file_);
}

Result<double> BareDisk::loop(DiskWay way, std::span<std::byte> memory) {
  const std::uint64_t requests = bytes_ / kRequestBytes;
  const auto pieces = static_cast<std::uint32_t>(memory.size() / kRequestBytes);
  std::deque<std::uint32_t> free;  // pieces of `memory`, least recently used first
  for (std::uint32_t tag = 0; tag < pieces; ++tag) free.push_back(tag);
  const std::size_t idle = pieces - kDepth;  // pieces that stay free with kDepth requests in flight
  std::vector<tiers::IoResult> ended;
  const Stopwatch watch;
  for (std::uint64_t sent = 0, done = 0; done < requests;) {
    for (; sent < requests && free.size() > idle; ++sent) {
      const bool write = way == DiskWay::both ? sent % 2 == 1 : way == DiskWay::out;
      queue_->push({.kind = write ? tiers::Io::Kind::write : tiers::Io::Kind::read,
                    .file = 0,
                    .offset = sent * kRequestBytes,
                    .memory = memory.data() + std::size_t{free.front()} * kRequestBytes,
                    .bytes = kRequestBytes,
                    .tag = free.front()});
      free.pop_front();
    }
    ended.clear();
    VMEM_TRY(queue_->wait(ended, std::chrono::seconds(1)));
    for (const tiers::IoResult& each : ended) {
      if (each.result != kRequestBytes)
        return cannot(path_, "a request failed", each.result < 0 ? int(-each.result) : EIO);
      free.push_back(std::uint32_t(each.tag));
      ++done;
    }
  }
  return static_cast<double>(requests * kRequestBytes) / watch.nanoseconds();
}

bool BareDisk::has_fio() {
  static const bool there = std::system("fio --version >/dev/null 2>&1") == 0;
  return there;
}

bool BareDisk::fio_has_large_pages() {
  static const bool there = [] {
    std::ifstream in("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    std::uint64_t free = 0;
    return in >> free && free * kLargePage >= kMemoryBytes + kSpareLargePages * kLargePage;
  }();
  return there;
}

Result<double> DiskLimit::rate(StreamMode mode) {
  const DiskWay way = mode == StreamMode::read_write ? DiskWay::both : DiskWay::in;
  return sum_all_at_once(disks_.size(), [&](std::size_t i) { return disks_[i]->loop(way); });
}

std::string DiskLimit::name(StreamMode mode) const {
  const std::string what = disks_.size() == 1 ? "the disk" : fmt::format("{} directories at once", disks_.size());
  return mode == StreamMode::read_write ? what + ", both ways" : "reading " + what;
}

Result<double> BareDisk::fio(DiskWay way, Steady steady) const {
  const char* const kind = way == DiskWay::in ? "read" : way == DiskWay::out ? "write" : "rw";
  const std::string time = steady.timed_s == 0 ? std::string()
                                               : fmt::format("--time_based --ramp_time={:.0f}ms --runtime={:.0f}ms ",
                                                             1000 * steady.ramp_s, 1000 * steady.timed_s);
  const std::string command = fmt::format(
      "fio --name=vmem --filename='{}' --rw={} --bs={} --iodepth={} --direct=1 --ioengine=io_uring --registerfiles=1 "
      "--fallocate=none --size={} --overwrite=1 {}{}--output-format=json 2>/dev/null",
      path_, kind, kRequestBytes, kDepth, bytes_, time,
      fio_has_large_pages() ? "--iomem=mmaphuge --hugepage-size=2m " : "");
  VMEM_ASSIGN(const std::string text, output_of(command));
  const auto json = nlohmann::json::parse(text.substr(std::min(text.find('{'), text.size())), nullptr, false);
  const auto jobs = json.is_object() ? json.find("jobs") : json.end();
  if (!json.is_object() || jobs == json.end() || jobs->empty())
    return fail(VMEM_ERROR_DRIVER, fmt::format("'{}' printed no figures", command));
  const auto& job = jobs->front();
  return (job["read"].value("bw_bytes", 0.0) + job["write"].value("bw_bytes", 0.0)) / 1e9;
}

}  // namespace vmem::bench
