// The pages in leases and their memory: lent memory, disk slots, staging memory for pages to and
// from the disk.
//
// Thread: the one that steps the service.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "rdma/lending/extents.hpp"
#include "rdma/lending/memory_service/lease.hpp"
#include "rdma/lending/memory_service/service_config.hpp"

namespace vmem::rdma {

// Staging memory of one page; gives it back at its end.
class Staging {
 public:
  Staging() = default;
  Staging(Extents& owner, std::uint64_t first, std::uint64_t bytes) : owner_(&owner), first_(first), bytes_(bytes) {}
  Staging(Staging&& other) noexcept { swap(other); }
  Staging& operator=(Staging&& other) noexcept {
    Staging(std::move(other)).swap(*this);
    return *this;
  }
  ~Staging();
  explicit operator bool() const noexcept { return owner_ != nullptr; }
  Bytes in(Bytes memory) const { return memory.subspan(first_, bytes_); }

 private:
  void swap(Staging& other) noexcept {
    std::swap(owner_, other.owner_);
    std::swap(first_, other.first_);
    std::swap(bytes_, other.bytes_);
  }
  Extents* owner_ = nullptr;
  std::uint64_t first_ = 0, bytes_ = 0;
};

class PageStore {
 public:
  PageStore(const ServiceConfig& config, ServiceStatistics& statistics)
      : config_(config),
        statistics_(statistics),
        capacity_(budgets(config)),
        staging_(config.lendable_bytes(), config.staging_bytes) {}

  // Of the medium, at the start.
  std::uint64_t capacity(wire::Medium medium) const { return capacity_[medium]; }

  // Erases the pages that the one at `at` overlaps. Erases none if one of them has a later sequence
  // (refused) or is in use (again).
  wire::Answer make_room(Lease& lease, const wire::PageAt& at, std::uint64_t sequence);
  // REQUIRES: make_room(). The page is arriving.
  void add(Lease& lease, const wire::PageAt& at, std::uint64_t sequence);
  // The page has arrived and is intact.
  void hold(Lease& lease, std::uint64_t offset);
  void erase(Lease& lease, Lease::Pages::iterator page);
  void erase_all(Lease& lease);
  // The borrower has released all pages between these offsets, by a message with that sequence;
  // earlier ones may have been lost. Erases them, from the end, up to one that is in use, that was
  // put later, or that is not all there. Returns where it ends; `first`: none is left.
  std::uint64_t erase_released(Lease& lease, std::uint64_t first, std::uint64_t end, std::uint64_t sequence);

  // Memory of a page that is not staged.
  Bytes memory(const Lease& lease, std::uint64_t offset, std::uint64_t bytes) const {
    return config_.memory.subspan(lease.in_memory(offset, bytes).first, bytes);
  }
  // Empty: none is free now.
  Staging stage(std::uint64_t bytes);

 private:
  static wire::MediumBytes budgets(const ServiceConfig& config);
  bool is_within(const Lease& lease, std::uint64_t offset, std::uint64_t bytes) const;
  std::uint64_t& held_bytes(std::uint64_t offset) { return statistics_.held[*wire::medium_of(offset)]; }

  const ServiceConfig& config_;
  ServiceStatistics& statistics_;
  const wire::MediumBytes capacity_;
  Extents staging_;
};

}  // namespace vmem::rdma
