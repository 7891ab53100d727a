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
      : config_(config), statistics_(statistics), staging_(config.lendable_bytes(), config.staging_bytes) {}

  // Erases the pages that the one at `at` overlaps. Erases none if one of them has a later sequence
  // (refused) or is in use (again).
  wire::Answer make_room(Lease& lease, const wire::PageAt& at, std::uint64_t sequence);
  // REQUIRES: make_room(). The page is arriving.
  void add(Lease& lease, const wire::PageAt& at, std::uint64_t sequence);
  // The page has arrived and is intact.
  void hold(Lease& lease, std::uint64_t offset);
  void erase(Lease& lease, Lease::Pages::iterator page);
  void erase_all(Lease& lease);

  // Memory of a page that is not staged.
  Bytes memory(const Lease& lease, std::uint64_t offset, std::uint64_t bytes) const {
    return config_.memory.subspan(lease.first + offset, bytes);
  }
  // Empty: none is free now.
  Staging stage(std::uint64_t bytes);

 private:
  std::uint64_t& held_bytes(std::uint64_t offset) { return statistics_.held[*wire::medium_of(offset)]; }

  const ServiceConfig& config_;
  ServiceStatistics& statistics_;
  Extents staging_;
};

}  // namespace vmem::rdma
