// Physical memory of one location (a device's HBM, a NUMA node's pinned host memory) as frames: driver handles of a few sizes, created
// on demand within a budget, recycled for ever (a fresh handle is scrubbed by the driver, a reused one is not) and mapped
// in a private window where copies reach them whatever is mapped at a page's own address.
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

// Where a pool's memory comes from, if not from the driver's own allocation.
class HandleSource {
 public:
  HandleSource() = default;
  HandleSource(const HandleSource&) = delete;
  HandleSource& operator=(const HandleSource&) = delete;
  virtual ~HandleSource() = default;
  // Errors: OUT_OF_MEMORY when there is none now; the driver's.
  virtual Result<CUmemGenericAllocationHandle> make(std::uint64_t bytes) = 0;
  // Of memory that is mapped nowhere any more.
  virtual Status release(CUmemGenericAllocationHandle handle) = 0;
};

class FramePool {
 public:
  struct Config {
    std::shared_ptr<const gpu::Driver> driver;
    CUmemLocation location;
    std::vector<CUmemLocation> accessors;  // who may read and write the window
    std::uint64_t budget_bytes = 0;
    std::uint64_t largest_budget_bytes = 0;  // that set_budget may ask for; 0: budget_bytes
    std::string name;                        // in messages: "HBM of device 0"
    HandleSource* source = nullptr;          // null: the driver
  };
  struct Frame : boost::intrusive::list_base_hook<boost::intrusive::link_mode<boost::intrusive::auto_unlink>> {
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr window = 0;
    std::uint32_t id = 0;
    std::uint8_t size_class = 0;
    // Of a free frame: the transfer that still reads it, 0 if none; and the page whose bytes it still holds, or null.
    std::uint64_t busy_until = 0;
    void* last_owner = nullptr;
  };

  explicit FramePool(Config config) : config_(std::move(config)) {}
  ~FramePool();
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;

  // A frame of page_bytes, from the free list (frames without a last owner first, then the longest free) or, within the
  // budget, a new one; nothing when neither is to be had. `frame.last_owner` and busy_until are as they were.
  // Errors: the driver's. A driver out of memory shrinks the budget to what there is and gives nothing.
  Result<std::optional<std::uint32_t>> take(std::uint64_t page_bytes);
  // The same, of frames that no unfinished transfer reads: `busy` tells of each.
  template <class Busy>
  Result<std::optional<std::uint32_t>> take_idle(std::uint64_t page_bytes, Busy&& busy);
  // The same as take without creating: for the caller that must not wait for the driver.
  std::optional<std::uint32_t> take_free(std::uint64_t page_bytes);
  // A given free frame, taken back by its last owner.
  void retake(std::uint32_t id);
  void give_back(std::uint32_t id, std::uint64_t busy_until, void* last_owner);
  // Gives free frames of other sizes back to the driver until `bytes` fit into the budget, as far as it can; `busy` tells
  // whether a transfer is unfinished, `forget` is told of last owners. True if there is room now.
  template <class Busy, class Forget>
  Result<bool> make_room(std::uint64_t bytes, Busy&& busy, Forget&& forget);

  // Less than exists: no frame is created, and shrink gives free ones back to the driver until the rest fits.
  void set_budget(std::uint64_t bytes) { config_.budget_bytes = bytes; }
  Status shrink();  // frames that nobody's transfer reads

  // Creation in three steps, for pools whose handles take milliseconds to make: plan, adopt and abandon under the owner's lock, make
  // without it (it touches nothing but the new frame).
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
  std::uint32_t frame_ids() const { return std::uint32_t(frames_.size()); }  // all ids are below
  std::uint64_t frame_bytes(std::uint32_t id) const { return classes_[frames_[id].size_class].page_bytes; }
  std::uint64_t budget_bytes() const { return config_.budget_bytes; }
  std::uint64_t created_bytes() const { return created_bytes_; }  // frames that exist or are being made
  std::uint64_t free_bytes() const { return free_bytes_; }        // of these, in the free lists
  std::uint64_t used_bytes() const { return created_bytes_ - free_bytes_ - making_bytes_; }
  std::uint64_t frames(std::uint64_t page_bytes) const;  // that exist or are being made
  std::uint64_t frames_created() const { return frames_created_; }
  bool can_create(std::uint64_t page_bytes) const { return created_bytes_ + page_bytes <= config_.budget_bytes; }

 private:
  using FreeList = boost::intrusive::list<Frame, boost::intrusive::constant_time_size<false>>;
  struct SizeClass {
    std::uint64_t page_bytes = 0;
    std::uint8_t index = 0;  // in classes_
    CUdeviceptr window = 0;  // one reservation, budget_bytes long
    std::uint32_t places = 0;
    std::uint32_t frames = 0;  // that exist or are being made
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
  std::uint64_t making_bytes_ = 0;  // planned, and neither adopted nor abandoned
  std::uint64_t frames_created_ = 0;
};

template <class Busy>
Result<std::optional<std::uint32_t>> FramePool::take_idle(std::uint64_t page_bytes, Busy&& busy) {
  Frame* owned = nullptr;  // whose owner may still want it back
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
