#include "runtime/suballocator/slab_pool.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"

namespace vmem::runtime {

// By now nothing is cached, waiting or live: all slabs go back.
SlabPool::~SlabPool() {
  for (Slab& slab : descriptors_) {
    if (slab.base == 0) continue;
    if (auto freed = source_.free_slabs(slab.base); !freed) {
      VMEM_LOG_WARN("slab {:#x} of device {} could not be given back: {}", slab.base, device_, freed.error().message);
    }
  }
}

Slab* SlabPool::take_spare(std::uint32_t granules) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(spare_, granules, &Slab::granules);
  if (found == spare_.end()) return nullptr;
  Slab* slab = *found;
  spare_.erase(found);
  spare_granules_ -= granules;
  return slab;
}

Result<Slab*> SlabPool::take(std::uint32_t size_class) {
  const std::uint32_t granules = kSizeClasses[size_class].granules;
  Slab* slab = take_spare(granules);
  if (slab == nullptr) {
    const std::size_t had = granules_.load(std::memory_order_relaxed);
    auto made = make(granules);
    if (!made) {
      // Slabs that cannot be given back stay spare. The source's own error is more precise than
      // this one.
      (void)release(0);
      if (granules_.load(std::memory_order_relaxed) < had) made = make(granules);
    }
    VMEM_ASSIGN(slab, std::move(made));
  }
  slab->cut(size_class);
  map_.place(*slab, size_class);
  return slab;
}

Result<Slab*> SlabPool::make(std::uint32_t granules) {
  VMEM_ASSIGN(const std::uintptr_t base, source_.allocate_slabs(device_, granules * kGranuleBytes));
  auto slab = adopt(base, granules);
  if (slab) return slab;
  if (auto freed = source_.free_slabs(base); !freed) {
    VMEM_LOG_ERROR("slab {:#x} of device {} is leaked: {}", base, device_, freed.error().message);
  }
  return slab;
}

Result<Slab*> SlabPool::adopt(std::uintptr_t base, std::uint32_t granules) {
  if (base % kGranuleBytes != 0 || !map_.contains(base, granules * kGranuleBytes)) {
    return fail(VMEM_ERROR_INTERNAL,
                fmt::format("a slab was placed at {:#x}: unaligned or outside the address space", base));
  }
  Slab* slab = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (unused_descriptors_.empty()) {
      slab = &descriptors_.emplace_back();
    } else {
      slab = unused_descriptors_.back();
      unused_descriptors_.pop_back();
    }
  }
  slab->base = base;
  slab->device = device_;
  slab->granules = granules;
  if (auto added = map_.add(*slab); !added) {
    const std::lock_guard lock(mutex_);
    slab->base = 0;
    unused_descriptors_.push_back(slab);
    return std::unexpected(std::move(added).error());
  }
  granules_.fetch_add(granules, std::memory_order_relaxed);
  return slab;
}

void SlabPool::put(std::span<Slab* const> slabs) {
  if (slabs.empty()) return;
  for (const Slab* slab : slabs) map_.place(*slab, Placement::kNoClass);
  std::size_t spare = 0;
  {
    const std::lock_guard lock(mutex_);
    for (Slab* slab : slabs) add_spare(*slab);
    spare = spare_granules_;
  }
  if (spare <= most_spare_) return;
  if (auto released = release(most_spare_ / 2); !released) {
    VMEM_LOG_WARN("spare slabs of device {} are kept: {}", device_, released.error().message);
  }
}

void SlabPool::add_spare(Slab& slab) {
  spare_.push_back(&slab);
  spare_granules_ += slab.granules;
}

Status SlabPool::release(std::size_t keep) {
  for (;;) {
    Slab* slab = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (spare_granules_ <= keep) return {};
      slab = spare_.back();
      spare_.pop_back();
      spare_granules_ -= slab->granules;
    }
    VMEM_TRY(give_back(*slab));
  }
}

Status SlabPool::give_back(Slab& slab) {
  // Before the source can reuse the addresses.
  map_.remove(slab);
  if (auto freed = source_.free_slabs(slab.base); !freed) {
    map_.place(slab, Placement::kNoClass);
    const std::lock_guard lock(mutex_);
    add_spare(slab);
    return freed;
  }
  granules_.fetch_sub(slab.granules, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  slab.base = 0;
  unused_descriptors_.push_back(&slab);
  return {};
}

std::size_t SlabPool::descriptor_bytes() const {
  const std::lock_guard lock(mutex_);
  return descriptors_.size() * (sizeof(Slab) + 2 * sizeof(Slab*));
}

}  // namespace vmem::runtime
