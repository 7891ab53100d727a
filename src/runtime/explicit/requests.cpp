#include "runtime/explicit/requests.hpp"

#include <fmt/format.h>

namespace vmem::runtime {

Status Requests::prefetch(const void* pointer, std::size_t bytes) {
  migration::PrefetchRequest request;
  VMEM_ASSIGN(request.run, parts_.addresses.locate(pointer, bytes));
  return parts_.mover.call(request);
}

Status Requests::advise(const void* pointer, std::size_t bytes, vmem_advice advice) {
  migration::AdviseRequest request;
  VMEM_ASSIGN(request.run, parts_.addresses.locate(pointer, bytes));
  request.advice = advice;
  return parts_.mover.call(request);
}

Status Requests::keep(std::uintptr_t address) {
  migration::KeepRequest request;
  VMEM_ASSIGN(request.run, parts_.addresses.pages_of(address));
  return parts_.mover.call(request);
}

Status Requests::query(const void* pointer, vmem_pointer_info& info) {
  VMEM_ASSIGN(const PageRun located, parts_.addresses.locate(pointer, 1));
  const pagetable::Region& region = *located.region;
  migration::QueryRequest request;
  VMEM_ASSIGN(request.run, parts_.addresses.pages_of(reinterpret_cast<std::uintptr_t>(pointer)));
  VMEM_TRY(parts_.mover.call(request));
  info = request.info;
  const auto allocation = parts_.addresses.allocation_at(reinterpret_cast<std::uintptr_t>(pointer));
  info.base = reinterpret_cast<void*>(allocation ? allocation->base : base_of(parts_.space, region));
  info.bytes = allocation ? allocation->bytes : region.bytes;
  info.page_bytes = region.page_bytes();
  info.device = parts_.devices[std::size_t(region.device)].ordinal;
  info.shared_pages = region.has_strangers() ? 1 : 0;
  return {};
}

Status Requests::quiesce() {
  migration::QuiesceRequest request;
  return parts_.mover.call(request);
}

std::string Requests::describe(std::uintptr_t address) const {
  std::string text = parts_.addresses.describe(address);
  const std::uint64_t now_us = parts_.mover.now_us();
  for (const auto& entry : parts_.mover.journal().about(parts_.space.granule_at(address), 8)) {
    text += fmt::format("\n    {:.3f} ms ago: {}", double(now_us - entry.at_us) * 1e-3, words(entry.what));
  }
  return text;
}

}  // namespace vmem::runtime
