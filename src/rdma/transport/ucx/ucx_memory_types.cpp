#include "rdma/transport/ucx/ucx_memory_types.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "rdma/transport/ucx/ucx_handles.hpp"

namespace vmem::rdma {
namespace {

const char* name_of(UcxMemoryType type) { return type == UcxMemoryType::cuda ? "CUDA" : "host"; }

// Why it cannot be registered; "": it was, and is gone again.
std::string why_not_mapped(const UcxContextRef& context, UcxMemoryType type, Bytes memory) {
  const auto mapped = UcxMemory::map(context, memory, number_of(type));
  if (!mapped) return fmt::format("it cannot register {} memory: {}", name_of(type), mapped.error().message);
  const auto registered = mapped->type();
  if (!registered) return registered.error().message;
  return *registered == number_of(type) ? "" : fmt::format("it takes {} memory for another type", name_of(type));
}

}  // namespace

UcxSettings with_cuda(UcxSettings settings) {
  for (auto& [name, value] : settings)
    if (name == "TLS") value += ",cuda_copy";
  return settings;
}

Result<UcxMemoryPath> ask_ucx_about_memory(const UcxSettings& settings, UcxMemoryType type,
                                           const std::function<Result<Bytes>()>& slab) {
  VMEM_ASSIGN(const UcxRef ucx, Ucx::load());
  VMEM_ASSIGN(const UcxContextRef context, UcxContext::create(ucx, settings));
  UcxMemoryPath path{.version = ucx->version(), .direct = false, .why = ""};
  VMEM_ASSIGN(const bool known, context->moves(number_of(type)));
  if (!known) {
    path.why = fmt::format("it has no {} memory type", name_of(type));
    return path;
  }
  path.direct = true;
  if (!slab) return path;
  VMEM_ASSIGN(const Bytes memory, slab());
  path.why = why_not_mapped(context, type, memory);
  path.direct = path.why.empty();
  return path;
}

}  // namespace vmem::rdma
