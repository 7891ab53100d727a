#include "gpu/emu/frames.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <string_view>

namespace vmem::emu {
namespace {

// The memfd's name tells an importing process the memory's location.
constexpr std::string_view device_name = "vmem-emu:device:";
constexpr std::string_view host_name = "vmem-emu:host:";

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

std::byte* map_alias(int fd, std::size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  return p == MAP_FAILED ? nullptr : static_cast<std::byte*>(p);
}

// Parses a descriptor's link target, e.g. "/memfd:vmem-emu:device:0 (deleted)".
bool read_location(int fd, Location& location) {
  char path[64], target[128];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(path, target, sizeof target);
  if (length <= 0) return false;
  std::string_view name(target, static_cast<std::size_t>(length));
  if (!name.starts_with("/memfd:")) return false;
  name.remove_prefix(7);
  location.host = name.starts_with(host_name);
  if (!location.host && !name.starts_with(device_name)) return false;
  name.remove_prefix(location.host ? host_name.size() : device_name.size());
  return std::from_chars(name.data(), name.data() + name.size(), location.id).ec == std::errc();
}

// Exportable frames of this process by inode. Importing a frame that this process exported returns
// the same frame.
struct ExportedFrames {
  std::mutex mutex;
  std::map<std::pair<dev_t, ino_t>, std::weak_ptr<Frame>> frames;
};
ExportedFrames& exported_frames() {
  // Never destroyed: driver threads outlive static destructors.
  static auto* instance = new ExportedFrames;
  return *instance;
}

std::pair<dev_t, ino_t> inode_of(int fd) {
  struct stat info{};
  fstat(fd, &info);
  return {info.st_dev, info.st_ino};
}

}  // namespace

Frame::Frame(std::shared_ptr<PhysicalMemory> budget, Location location, std::size_t bytes)
    : budget_(std::move(budget)), location_(location), bytes_(bytes), id_(next_id()) {}

Frame::~Frame() {
  if (own_fd_) {
    {
      auto& exported = exported_frames();
      const std::lock_guard lock(exported.mutex);
      const auto found = exported.frames.find(inode_of(fd_));
      if (found != exported.frames.end() && found->second.expired()) exported.frames.erase(found);
    }
    if (alias_) munmap(alias_, bytes_);
    close(fd_);
  } else if (alias_) {
    budget_->return_range(offset_, bytes_);
  }
  if (budget_) budget_->refund(bytes_);
}

bool Frame::adopt(int fd) {
  own_fd_ = true;
  fd_ = fd;
  alias_ = map_alias(fd, bytes_);
  return alias_ != nullptr;
}

bool Frame::open_own(const char* name) {
  const int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd < 0) return false;
  if (ftruncate(fd, static_cast<off_t>(bytes_)) != 0) {
    close(fd);
    return false;
  }
  return adopt(fd);
}

std::shared_ptr<Frame> Frame::import(int fd) {
  Location location;
  struct stat info{};
  if (!read_location(fd, location) || fstat(fd, &info) != 0 || info.st_size <= 0) return nullptr;
  const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return nullptr;
  std::shared_ptr<Frame> frame(new Frame(nullptr, location, static_cast<std::size_t>(info.st_size)));
  if (!frame->adopt(own)) return nullptr;
  // Declared after `frame`: a frame found to be known already must be destroyed after the unlock,
  // because ~Frame takes this lock.
  auto& exported = exported_frames();
  const std::lock_guard lock(exported.mutex);
  auto& entry = exported.frames[{info.st_dev, info.st_ino}];
  if (auto known = entry.lock()) return known;
  entry = frame;
  return frame;
}

std::shared_ptr<Frame> PhysicalMemory::create(std::size_t bytes, Location location, bool exportable) {
  if (!charge(bytes)) return nullptr;
  std::shared_ptr<Frame> frame(new Frame(shared_from_this(), location, bytes));
  // The arena is twice the budget, so fragmentation seldom matters; if it does, a frame gets its
  // own memfd.
  if (!exportable && take_range(bytes, frame->offset_)) {
    frame->fd_ = arena_fd_;
    frame->alias_ = arena_ + frame->offset_;
    return frame;
  }
  char name[64];
  std::snprintf(name, sizeof name, "%s%d", location.host ? host_name.data() : device_name.data(), location.id);
  if (!frame->open_own(name)) return nullptr;
  frame->exportable_ = exportable;
  auto& exported = exported_frames();
  const std::lock_guard lock(exported.mutex);
  exported.frames[inode_of(frame->fd_)] = frame;
  return frame;
}

PhysicalMemory::~PhysicalMemory() {
  if (arena_) munmap(arena_, arena_bytes_);
  if (arena_fd_ >= 0) close(arena_fd_);
}

bool PhysicalMemory::charge(std::size_t bytes) {
  std::uint64_t used = used_bytes_.load(std::memory_order_relaxed);
  do {
    if (bytes > capacity_bytes_ - used) return false;
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  return true;
}

void PhysicalMemory::refund(std::size_t bytes) { used_bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

bool PhysicalMemory::open_arena() {
  arena_bytes_ = 2 * capacity_bytes_;
  arena_fd_ = memfd_create("vmem-emu:arena", MFD_CLOEXEC);
  if (arena_fd_ < 0) return false;
  if (ftruncate(arena_fd_, static_cast<off_t>(arena_bytes_)) == 0) arena_ = map_alias(arena_fd_, arena_bytes_);
  if (!arena_) return false;
  free_ranges_[0] = arena_bytes_;
  return true;
}

// First fit.
bool PhysicalMemory::take_range(std::size_t bytes, off_t& offset) {
  const std::lock_guard lock(mutex_);
  if (arena_fd_ < 0 && !open_arena()) return false;
  for (auto it = free_ranges_.begin(); it != free_ranges_.end(); ++it) {
    const auto [begin, size] = *it;
    if (size < bytes) continue;
    free_ranges_.erase(it);
    if (size > bytes) free_ranges_[begin + static_cast<off_t>(bytes)] = size - bytes;
    offset = begin;
    return true;
  }
  return false;
}

void PhysicalMemory::return_range(off_t offset, std::size_t bytes) {
  // Returns the memory to the system. The next owner gets zeros, as the driver scrubs fresh memory.
  fallocate(arena_fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, static_cast<off_t>(bytes));
  const std::lock_guard lock(mutex_);
  auto next = free_ranges_.lower_bound(offset);
  if (next != free_ranges_.end() && next->first == offset + static_cast<off_t>(bytes)) {
    bytes += next->second;
    next = free_ranges_.erase(next);
  }
  if (next != free_ranges_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + static_cast<off_t>(previous->second) == offset) {
      previous->second += bytes;
      return;
    }
  }
  free_ranges_[offset] = bytes;
}

}  // namespace vmem::emu
