// Physical memory: budgets and the frames allocated from them. A device's ordinary frames are
// ranges of one sparse memfd, mapped once as a whole (the alias). Copies use the alias, independent
// of a frame's mappings and their access. One descriptor and one mapping serve all frames. An
// exportable frame has its own memfd, because its memory must live until the last importer releases
// it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace vmem::emu {

struct Location {
  bool host = false;
  int id = 0;  // device ordinal or NUMA node
  auto operator<=>(const Location&) const = default;
};

class PhysicalMemory;

// Constant after construction; destruction returns the memory.
class Frame {
 public:
  ~Frame();
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  Location location() const { return location_; }
  std::size_t bytes() const { return bytes_; }
  std::byte* alias() const { return alias_; }  // always mapped read-write
  int fd() const { return fd_; }
  off_t offset() const { return offset_; }
  bool exportable() const { return exportable_; }
  std::uint64_t id() const { return id_; }

  // The frame behind a descriptor exported by this or another process; null for other descriptors.
  // The caller keeps the descriptor. Memory of another process counts against that process's
  // budget.
  static std::shared_ptr<Frame> import(int fd);

 private:
  friend class PhysicalMemory;
  Frame(std::shared_ptr<PhysicalMemory> budget, Location location, std::size_t bytes);
  bool open_own(const char* name);
  bool adopt(int fd);

  const std::shared_ptr<PhysicalMemory> budget_;  // null for memory of another process
  const Location location_;
  const std::size_t bytes_;
  const std::uint64_t id_;
  std::byte* alias_ = nullptr;
  int fd_ = -1;
  off_t offset_ = 0;
  bool own_fd_ = false;
  bool exportable_ = false;  // created so; an imported frame is not
};

class PhysicalMemory : public std::enable_shared_from_this<PhysicalMemory> {
 public:
  explicit PhysicalMemory(std::uint64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}
  ~PhysicalMemory();
  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;

  // `bytes`: a multiple of the granularity. Null if the budget or the system's memory is exhausted.
  std::shared_ptr<Frame> create(std::size_t bytes, Location location, bool exportable);

  // Counts pinned host memory, which has no frame, against the budget. False: the budget is
  // exhausted.
  bool charge(std::size_t bytes);
  void refund(std::size_t bytes);

  std::uint64_t capacity_bytes() const { return capacity_bytes_; }
  std::uint64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }

 private:
  friend class Frame;
  bool open_arena();
  bool take_range(std::size_t bytes, off_t& offset);
  void return_range(off_t offset, std::size_t bytes);

  const std::uint64_t capacity_bytes_;
  std::atomic<std::uint64_t> used_bytes_{0};

  std::mutex mutex_;  // protects the members below; leaf
  int arena_fd_ = -1;
  std::byte* arena_ = nullptr;
  std::size_t arena_bytes_ = 0;
  std::map<off_t, std::size_t> free_ranges_;
};

}  // namespace vmem::emu
