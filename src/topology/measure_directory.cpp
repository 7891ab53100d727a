#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "topology/measure.hpp"

namespace vmem::topology {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kBlockBytes = std::uint64_t{4} << 20;
constexpr int kThreads = 4;
constexpr std::size_t kAlignment = 4096;

// Unnamed (O_TMPFILE): removed when closed.
class ScratchFile {
 public:
  static Result<ScratchFile> create(const std::string& directory, std::uint64_t bytes) {
    ScratchFile file;
    file.fd_ = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (file.fd_ < 0) return refuse(directory, "a file cannot be made there for direct I/O", errno);
    if (const int error = ::posix_fallocate(file.fd_, 0, off_t(bytes)); error != 0)
      return refuse(directory, fmt::format("{} MiB cannot be allocated there", bytes >> 20), error);
    return file;
  }
  static std::unexpected<Error> refuse(const std::string& directory, const std::string& what, int error) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{} cannot be measured: {} ({})", directory, what, std::strerror(error)), error);
  }
  ScratchFile(ScratchFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ScratchFile& operator=(ScratchFile&&) = delete;
  ~ScratchFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }

 private:
  ScratchFile() = default;
  int fd_ = -1;
};

struct Freed {
  void operator()(void* memory) const { std::free(memory); }
};

// Several threads take blocks in turn, as a tier keeps several requests in flight. Returns 0, or an
// errno.
template <class Transfer>
int move_blocks(std::uint64_t bytes, Transfer transfer) {
  std::atomic<std::uint64_t> next{0};
  std::atomic<int> error{0};
  std::vector<std::jthread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      const std::unique_ptr<void, Freed> block(std::aligned_alloc(kAlignment, kBlockBytes));
      if (!block) {
        error = ENOMEM;
        return;
      }
      std::memset(block.get(), 0x5a, kBlockBytes);
      for (std::uint64_t at = next.fetch_add(kBlockBytes); at < bytes && error == 0; at = next.fetch_add(kBlockBytes)) {
        const ssize_t moved = transfer(block.get(), off_t(at));
        if (moved != ssize_t(kBlockBytes)) error = moved < 0 ? errno : EIO;
      }
    });
  threads.clear();
  return error;
}

double rate_since(Clock::time_point begin, std::uint64_t bytes) {
  return double(bytes) / std::chrono::duration<double>(Clock::now() - begin).count();
}

struct DiskRates {
  double write = 0, read = 0;
};

Result<DiskRates> measure_file(const std::string& directory, std::uint64_t bytes) {
  VMEM_ASSIGN(const ScratchFile file, ScratchFile::create(directory, bytes));
  DiskRates rates;
  auto begin = Clock::now();
  int error =
      move_blocks(bytes, [&](const void* block, off_t at) { return ::pwrite(file.fd(), block, kBlockBytes, at); });
  if (error == 0 && ::fdatasync(file.fd()) != 0) error = errno;
  if (error != 0) return ScratchFile::refuse(directory, "writing failed", error);
  rates.write = rate_since(begin, bytes);
  begin = Clock::now();
  error = move_blocks(bytes, [&](void* block, off_t at) { return ::pread(file.fd(), block, kBlockBytes, at); });
  if (error != 0) return ScratchFile::refuse(directory, "reading failed", error);
  rates.read = rate_since(begin, bytes);
  return rates;
}

// The topology's disk that holds the directory: the block device's path in /sys contains the disk's
// name.
std::optional<NodeIndex> disk_of(const Topology& topology, const std::string& directory) {
  struct stat info{};
  if (::stat(directory.c_str(), &info) != 0) return std::nullopt;
  std::error_code code;
  const auto path =
      std::filesystem::canonical(fmt::format("/sys/dev/block/{}:{}", major(info.st_dev), minor(info.st_dev)), code);
  for (const NodeIndex disk : topology.all(NodeKind::disk))
    if (topology[disk].name == directory || std::find(path.begin(), path.end(), topology[disk].name) != path.end())
      return disk;
  return std::nullopt;
}

}  // namespace

Status measure_directory(Topology& topology, const std::string& directory, std::uint64_t bytes) {
  bytes = std::max(bytes / kBlockBytes, std::uint64_t{1}) * kBlockBytes;
  VMEM_ASSIGN(const DiskRates rates, measure_file(directory, bytes));
  auto disk = disk_of(topology, directory);
  if (!disk) {
    const auto roots = topology.all(NodeKind::root);
    if (roots.empty()) return fail(VMEM_ERROR_INTERNAL, "a topology without a NUMA node has no place for a disk");
    disk = topology.add({NodeKind::disk, int(topology.all(NodeKind::disk).size()), directory, "", 0});
    topology.links.push_back({roots.front(), *disk, LinkKind::pcie, {}, {}, {}, 0});
  }
  for (Link& link : topology.links) {
    if (link.b != *disk) continue;
    link.forward = {rates.write, Origin::measured};
    link.backward = {rates.read, Origin::measured};
  }
  return {};
}

}  // namespace vmem::topology
