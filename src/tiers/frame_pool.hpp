// Physical memory of one location (a device's HBM, a NUMA node's pinned host memory) as frames:
// driver handles of a few sizes. Frames are created on demand within a budget and recycled, because
// the driver scrubs new handles but not reused ones. Each frame is mapped in a private window:
// copies use the window address, independent of the mapping at the page's own address.
#pragma once

#include <boost/intrusive/list.hpp>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "gpu/driver.hpp"

namespace vmem::tiers {

// Replaces the driver's allocation as the origin of a pool's memory.
class HandleSource {
 public:
  HandleSource() = default;
  HandleSource(const HandleSource&) = delete;
  HandleSource& operator=(const HandleSource&) = delete;
  virtual ~HandleSource() = default;
  // Errors: OUT_OF_MEMORY if the source has none now; the driver's.
  virtual Result<CUmemGenericAllocationHandle> make(std::uint64_t bytes) = 0;
  // REQUIRES: the memory is not mapped.
  virtual Status release(CUmemGenericAllocationHandle handle) = 0;
};

class FramePool {
 public:
  struct Config {
    std::shared_ptr<const gpu::Driver> driver;
    CUmemLocation location;
    std::vector<CUmemLocation> accessors;  // may read and write the window
    std::uint64_t budget_bytes = 0;
    std::uint64_t largest_budget_bytes = 0;  // maximum for set_budget; 0: budget_bytes
    std::string name;                        // in messages: "HBM of device 0"
    HandleSource* source = nullptr;          // null: the driver
  };
  struct Frame : boost::intrusive::list_base_hook<boost::intrusive::link_mode<boost::intrusive::auto_unlink>> {
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr window = 0;
    std::uint32_t id = 0;
    std::uint8_t size_class = 0;
    // Free frames: the transfer that still reads the frame (0: none), and the page whose bytes it
    // still holds (or null).
    std::uint64_t busy_until = 0;
    void* last_owner = nullptr;
  };

  explicit FramePool(Config config) : config_(std::move(config)) {}
  ~FramePool();
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;

  // A frame of page_bytes: a free one without last owner, else a new one within the budget, else
  // the one free for longest; nothing if there is none. Keeps the frame's last_owner, busy_until.
  // Errors: the driver's. A driver out of memory shrinks the budget to the existing frames.
  Result<std::optional<std::uint32_t>> take(std::uint64_t page_bytes);
  // Like take, but skips frames that an unfinished transfer reads: `busy(transfer)` says so.
  template <class Busy>
  Result<std::optional<std::uint32_t>> take_idle(std::uint64_t page_bytes, Busy&& busy);
  // The first free frame, never a new one: for callers that must not wait for the driver.
  std::optional<std::uint32_t> take_free(std::uint64_t page_bytes);
  // Takes free frame `id` for its last owner.
  void retake(std::uint32_t id);
  void give_back(std::uint32_t id, std::uint64_t busy_until, void* last_owner);
  // Releases free frames of other sizes until `bytes` fit into the budget. Skips frames for which
  // `busy(transfer)` is true, and calls `forget(last_owner)` for those it releases. True if `bytes`
  // fit now.
  template <class Busy, class Forget>
  Result<bool> make_room(std::uint64_t bytes, Busy&& busy, Forget&& forget);

  // A budget below created_bytes stops creation; shrink then releases free frames down to it.
  void set_budget(std::uint64_t bytes) { config_.budget_bytes = bytes; }
  Status shrink();  // only frames without last owner that no transfer reads

  // Creation in three steps, for pools whose handles take milliseconds to create. Call plan, adopt
  // and abandon under the owner's lock, and make without it: make touches only the new frame.
  struct NewFrame {
    std::uint8_t size_class;
    std::uint32_t place;
    std::uint64_t page_bytes;
    CUdeviceptr window;
    CUmemGenericAllocationHandle handle;
  };
  Result<std::optional<NewFrame>> plan(std::uint64_t page_bytes);
  Status make(NewFrame& planned) const;
  std::uint32_t adopt(const NewFrame& made);
  void abandon(const NewFrame& planned, bool out_of_memory);

  Frame& frame(std::uint32_t id) { return frames_[id]; }
  std::uint32_t frame_ids() const { return std::uint32_t(frames_.size()); }  // exceeds all ids
  std::uint64_t frame_bytes(std::uint32_t id) const { return classes_[frames_[id].size_class].page_bytes; }
  std::uint64_t budget_bytes() const { return config_.budget_bytes; }
  // Existing frames and those being created.
  std::uint64_t created_bytes() const { return created_bytes_; }
  std::uint64_t free_bytes() const { return free_bytes_; }
  std::uint64_t used_bytes() const { return created_bytes_ - free_bytes_ - making_bytes_; }
  std::uint64_t frames(std::uint64_t page_bytes) const;  // existing or being created
  std::uint64_t frames_created() const { return frames_created_; }
  std::uint64_t frames_destroyed() const { return frames_destroyed_; }
  bool can_create(std::uint64_t page_bytes) const { return created_bytes_ + page_bytes <= config_.budget_bytes; }

 private:
  using FreeList = boost::intrusive::list<Frame, boost::intrusive::constant_time_size<false>>;
  struct SizeClass {
    std::uint64_t page_bytes = 0;
    std::uint8_t index = 0;  // in classes_
    CUdeviceptr window = 0;  // one reservation for `places` frames
    std::uint32_t places = 0;
    std::uint32_t frames = 0;  // existing or being created
    std::vector<std::uint32_t> free_places;
    std::uint32_t next_place = 0;
    FreeList free;
  };
  Result<SizeClass*> size_class(std::uint64_t page_bytes);
  Result<std::optional<std::uint32_t>> create(std::uint64_t page_bytes);
  Result<CUmemGenericAllocationHandle> make_handle(std::uint64_t bytes) const;
  Status release_handle(CUmemGenericAllocationHandle handle) const;
  Status map_into_window(const NewFrame& made) const;
  Status destroy(Frame& frame);

  Config config_;
  std::deque<SizeClass> classes_;
  std::deque<Frame> frames_;
  std::vector<std::uint32_t> free_ids_;
  std::uint64_t created_bytes_ = 0;
  std::uint64_t free_bytes_ = 0;
  std::uint64_t making_bytes_ = 0;  // planned, not yet adopted or abandoned
  std::uint64_t frames_created_ = 0, frames_destroyed_ = 0;
};

template <class Busy>
Result<std::optional<std::uint32_t>> FramePool::take_idle(std::uint64_t page_bytes, Busy&& busy) {
  Frame* owned = nullptr;  // last choice: its last owner may retake it
  for (SizeClass& candidates : classes_) {
    if (candidates.page_bytes != page_bytes) continue;
    for (Frame& frame : candidates.free) {
      if (frame.busy_until != 0 && busy(frame.busy_until)) continue;
      if (frame.last_owner == nullptr) {
        retake(frame.id);
        return frame.id;
      }
      if (owned == nullptr) owned = &frame;
    }
  }
  VMEM_ASSIGN(const auto created, create(page_bytes));
  if (created || owned == nullptr) return created;
  retake(owned->id);
  return owned->id;
}

template <class Busy, class Forget>
Result<bool> FramePool::make_room(std::uint64_t bytes, Busy&& busy, Forget&& forget) {
  for (SizeClass& candidates : classes_) {
    if (candidates.page_bytes == bytes) continue;
    for (auto it = candidates.free.begin(); it != candidates.free.end() && !can_create(bytes);) {
      Frame& frame = *it;
      if (frame.busy_until != 0 && busy(frame.busy_until)) {
        ++it;
        continue;
      }
      it = candidates.free.erase(it);
      free_bytes_ -= candidates.page_bytes;
      if (frame.last_owner != nullptr) forget(frame.last_owner);
      VMEM_TRY(destroy(frame));
    }
  }
  return can_create(bytes);
}

}  // namespace vmem::tiers
