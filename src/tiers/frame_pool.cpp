#include "tiers/frame_pool.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"

namespace vmem::tiers {

FramePool::~FramePool() {
  // Failures are ignored: a lost context has already released its memory.
  for (Frame& frame : frames_) {
    if (frame.is_linked()) frame.unlink();
    if (frame.handle == 0) continue;
    (void)(*config_.driver)->cuMemUnmap(frame.window, classes_[frame.size_class].page_bytes);
    (void)release_handle(frame.handle);
  }
  for (SizeClass& size_class : classes_) {
    (void)(*config_.driver)->cuMemAddressFree(size_class.window, size_class.places * size_class.page_bytes);
  }
}

Result<FramePool::SizeClass*> FramePool::size_class(std::uint64_t page_bytes) {
  for (SizeClass& existing : classes_) {
    if (existing.page_bytes == page_bytes) return &existing;
  }
  const std::uint64_t places = std::max(config_.budget_bytes, config_.largest_budget_bytes) / page_bytes;
  if (places == 0) return nullptr;
  CUdeviceptr window = 0;
  VMEM_TRY(config_.driver->check((*config_.driver)->cuMemAddressReserve(&window, places * page_bytes, page_bytes, 0, 0),
                                 "cuMemAddressReserve"));
  SizeClass& added = classes_.emplace_back();
  added.index = std::uint8_t(classes_.size() - 1);
  added.page_bytes = page_bytes;
  added.window = window;
  added.places = std::uint32_t(places);
  return &added;
}

std::optional<std::uint32_t> FramePool::take_free(std::uint64_t page_bytes) {
  for (SizeClass& candidates : classes_) {
    if (candidates.page_bytes != page_bytes || candidates.free.empty()) continue;
    Frame& frame = candidates.free.front();
    candidates.free.pop_front();
    free_bytes_ -= page_bytes;
    return frame.id;
  }
  return std::nullopt;
}

Result<std::optional<std::uint32_t>> FramePool::take(std::uint64_t page_bytes) {
  for (const SizeClass& existing : classes_) {
    if (existing.page_bytes != page_bytes || existing.free.empty()) continue;
    if (existing.free.front().last_owner == nullptr) return take_free(page_bytes);
  }
  VMEM_ASSIGN(const auto created, create(page_bytes));
  return created ? created : take_free(page_bytes);
}

void FramePool::retake(std::uint32_t id) {
  Frame& frame = frames_[id];
  frame.unlink();
  free_bytes_ -= classes_[frame.size_class].page_bytes;
}

void FramePool::give_back(std::uint32_t id, std::uint64_t busy_until, void* last_owner) {
  Frame& frame = frames_[id];
  frame.busy_until = busy_until;
  frame.last_owner = last_owner;
  SizeClass& owner_class = classes_[frame.size_class];
  if (last_owner == nullptr) {
    owner_class.free.push_front(frame);
  } else {
    owner_class.free.push_back(frame);
  }
  free_bytes_ += owner_class.page_bytes;
}

std::uint64_t FramePool::frames(std::uint64_t page_bytes) const {
  for (const SizeClass& candidate : classes_) {
    if (candidate.page_bytes == page_bytes) return candidate.frames;
  }
  return 0;
}

Result<std::optional<std::uint32_t>> FramePool::create(std::uint64_t page_bytes) {
  VMEM_ASSIGN(std::optional<NewFrame> planned, plan(page_bytes));
  if (!planned) return std::nullopt;
  if (auto made = make(*planned); !made) {
    const bool out_of_memory = made.error().status == VMEM_ERROR_OUT_OF_MEMORY;
    abandon(*planned, out_of_memory);
    if (out_of_memory) return std::nullopt;
    return std::unexpected(made.error());
  }
  return adopt(*planned);
}

Result<std::optional<FramePool::NewFrame>> FramePool::plan(std::uint64_t page_bytes) {
  if (!can_create(page_bytes)) return std::nullopt;
  VMEM_ASSIGN(SizeClass* const wanted, size_class(page_bytes));
  if (wanted == nullptr) return std::nullopt;
  std::uint32_t place = 0;
  if (!wanted->free_places.empty()) {
    place = wanted->free_places.back();
    wanted->free_places.pop_back();
  } else if (wanted->next_place < wanted->places) {
    place = wanted->next_place++;
  } else {
    return std::nullopt;
  }
  created_bytes_ += page_bytes;
  making_bytes_ += page_bytes;
  ++wanted->frames;
  return NewFrame{wanted->index, place, page_bytes, wanted->window + place * page_bytes, 0};
}

Status FramePool::make(NewFrame& planned) const {
  VMEM_ASSIGN(planned.handle, make_handle(planned.page_bytes));
  auto mapped = map_into_window(planned);
  if (!mapped) (void)release_handle(planned.handle);
  return mapped;
}

Result<CUmemGenericAllocationHandle> FramePool::make_handle(std::uint64_t bytes) const {
  if (config_.source != nullptr) return config_.source->make(bytes);
  const auto& driver = *config_.driver;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = config_.location;
  CUmemGenericAllocationHandle handle = 0;
  VMEM_TRY(driver.check(driver->cuMemCreate(&handle, bytes, &prop, 0), "cuMemCreate"));
  return handle;
}

Status FramePool::release_handle(CUmemGenericAllocationHandle handle) const {
  if (config_.source != nullptr) return config_.source->release(handle);
  const auto& driver = *config_.driver;
  return driver.check(driver->cuMemRelease(handle), "cuMemRelease");
}

void FramePool::abandon(const NewFrame& planned, bool out_of_memory) {
  classes_[planned.size_class].free_places.push_back(planned.place);
  --classes_[planned.size_class].frames;
  created_bytes_ -= planned.page_bytes;
  making_bytes_ -= planned.page_bytes;
  if (!out_of_memory) return;
  VMEM_LOG_WARN("{} ran out at {} of a budget of {} bytes; going on with what there is", config_.name, created_bytes_,
                config_.budget_bytes);
  config_.budget_bytes = created_bytes_;
}

std::uint32_t FramePool::adopt(const NewFrame& made) {
  std::uint32_t id = std::uint32_t(frames_.size());
  if (free_ids_.empty()) {
    frames_.emplace_back();
  } else {
    id = free_ids_.back();
    free_ids_.pop_back();
  }
  Frame& frame = frames_[id];
  frame.handle = made.handle;
  frame.window = made.window;
  frame.id = id;
  frame.size_class = made.size_class;
  frame.busy_until = 0;
  frame.last_owner = nullptr;
  making_bytes_ -= made.page_bytes;
  ++frames_created_;
  return id;
}

Status FramePool::map_into_window(const NewFrame& made) const {
  const auto& driver = *config_.driver;
  VMEM_TRY(driver.check(driver->cuMemMap(made.window, made.page_bytes, 0, made.handle, 0), "cuMemMap"));
  std::vector<CUmemAccessDesc> access;
  for (const CUmemLocation& accessor : config_.accessors)
    access.push_back({accessor, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  const CUresult result = driver->cuMemSetAccess(made.window, made.page_bytes, access.data(), access.size());
  if (result != CUDA_SUCCESS) (void)driver->cuMemUnmap(made.window, made.page_bytes);
  return driver.check(result, "cuMemSetAccess");
}

Status FramePool::shrink() {
  for (SizeClass& candidates : classes_) {
    for (auto it = candidates.free.begin(); it != candidates.free.end() && created_bytes_ > config_.budget_bytes;) {
      Frame& frame = *it++;
      if (frame.busy_until != 0 || frame.last_owner != nullptr) continue;
      frame.unlink();
      free_bytes_ -= candidates.page_bytes;
      VMEM_TRY(destroy(frame));
    }
  }
  return {};
}

Status FramePool::destroy(Frame& frame) {
  const auto& driver = *config_.driver;
  SizeClass& owner_class = classes_[frame.size_class];
  const CUresult unmapped = driver->cuMemUnmap(frame.window, owner_class.page_bytes);
  if (unmapped != CUDA_SUCCESS) {
    give_back(frame.id, 0, nullptr);
    return driver.check(unmapped, "cuMemUnmap");
  }
  owner_class.free_places.push_back(std::uint32_t((frame.window - owner_class.window) / owner_class.page_bytes));
  --owner_class.frames;
  ++frames_destroyed_;
  created_bytes_ -= owner_class.page_bytes;
  free_ids_.push_back(frame.id);
  // If the release fails, the process leaks the handle's memory and the caller gets the error.
  return release_handle(std::exchange(frame.handle, 0));
}

}  // namespace vmem::tiers
