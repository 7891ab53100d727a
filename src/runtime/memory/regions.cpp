#include "runtime/memory/regions.hpp"

#include <utility>

#include "runtime/memory/readiness.hpp"

namespace vmem::runtime {

using pagetable::Region;

Result<Region*> Regions::allocate(std::size_t bytes, int device, RegionKind kind) {
  const auto ask = [&] {
    migration::AllocateRequest request;
    request.bytes = bytes;
    request.device = device;
    request.kind = kind;
    return make(request);
  };
  auto region = ask();
  if (region || region.error().status != VMEM_ERROR_ADDRESS_SPACE || !more_) return region;
  VMEM_TRY(more_(bytes));
  return ask();
}

Result<std::uint32_t> Regions::extend(Region& region, std::uint32_t pages) {
  migration::ExtendRequest request;
  request.region = &region;
  request.first_granule = region.first.index;
  request.pages = pages;
  VMEM_TRY(mover_.call(request));
  return request.first_page;
}

Status Regions::commit(Region& region, std::uint32_t pages, migration::CommitRequest::What what) {
  migration::CommitRequest request;
  request.region = &region;
  request.first_granule = region.first.index;
  request.pages = pages;
  request.what = what;
  return mover_.call(request);
}

Result<Region*> Regions::map(std::shared_ptr<tiers::PageSource> source, int device) {
  migration::AllocateRequest request;
  request.device = device;
  request.source = std::move(source);
  return make(request);
}

Result<Region*> Regions::make(migration::AllocateRequest& request) {
  const bool joint = request.source != nullptr && request.source->place();
  VMEM_TRY(mover_.call(request));
  auto settled = make_accessible_if_drained(*request.region);
  if (settled) return request.region;
  migration::FreeRequest undo;  // no work has used it
  undo.region = request.region;
  undo.first_granule = request.region->first.index;
  undo.joint = joint;
  (void)mover_.call(undo);
  return std::unexpected(std::move(settled).error());
}

Status Regions::free(Region& region, std::uint32_t first_granule, vmem_stream stream) {
  migration::FreeRequest request;
  request.region = &region;
  request.first_granule = first_granule;
  return end(request, stream);
}

Status Regions::close(Region& region, std::uint32_t first_granule, vmem_stream stream) {
  migration::FreeRequest request;
  request.region = &region;
  request.first_granule = first_granule;
  request.joint = true;
  return end(request, stream);
}

Status Regions::check_stream(vmem_stream stream) const {
  VMEM_ASSIGN(migration::StreamRecord* const record, streams_.find(stream));
  return check_device(*record);
}

Status Regions::end(migration::FreeRequest& request, vmem_stream stream) {
  VMEM_ASSIGN(migration::StreamRecord* const record, streams_.find(stream));
  VMEM_TRY(check_device(*record));
  request.last = record->open_stamp();
  VMEM_TRY(streams_.close_epoch(*record));
  return mover_.call(request);
}

Status Regions::free_unused(Region& region, std::uint32_t first_granule) {
  migration::FreeRequest request;
  request.region = &region;
  request.first_granule = first_granule;
  return mover_.call(request);
}

Status Regions::make_accessible_if_drained(Region& region) {
  if (!gate_.drained()) return {};
  migration::SettleRequest request;
  request.region = &region;
  VMEM_TRY(mover_.call(request));
  if (request.settled) return {};
  VMEM_ASSIGN(const auto drained, gate_.drain());
  migration::SettleRequest with_evictions;
  with_evictions.region = &region;
  with_evictions.idle = true;
  return mover_.call(with_evictions);
}

}  // namespace vmem::runtime
