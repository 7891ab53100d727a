// cuGetProcAddress: entry points by their base names. Each has one version here, the one that cuda.h names.
#include <string_view>
#include <unordered_map>

// Before whatever else includes cuda.h: it makes the functions visible.
#include "gpu/emu/api_entry.hpp"

#include "gpu/driver_table.hpp"
#include "gpu/emu/program_functions.hpp"

namespace {

const std::unordered_map<std::string_view, void*>& entry_points() {
  // #name is the base name: the macros of cuda.h do not apply to an operand of #.
#define VMEM_ENTRY(name) {#name, reinterpret_cast<void*>(&::name)},
  static const auto* table = new std::unordered_map<std::string_view, void*>{VMEM_DRIVER_REQUIRED(
      VMEM_ENTRY) VMEM_DRIVER_OPTIONAL(VMEM_ENTRY) VMEM_EMU_PROGRAM_FUNCTIONS(VMEM_ENTRY) VMEM_ENTRY(cuGetProcAddress)};
#undef VMEM_ENTRY
  return *table;
}

}  // namespace

CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult* status) try {
  constexpr cuuint64_t known_flags = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (!symbol || !function || (flags & ~known_flags)) return CUDA_ERROR_INVALID_VALUE;
  if (version > vmem::emu::machine().config().version) return CUDA_ERROR_INVALID_VALUE;
  const auto found = entry_points().find(symbol);
  const bool known = found != entry_points().end();
  const bool new_enough = version >= 12000;
  *function = known && new_enough ? found->second : nullptr;
  if (*function && (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)) {
    if (void* variant = vmem::emu::per_thread_variant(symbol)) *function = variant;
  }
  if (status)
    *status = !known       ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
              : new_enough ? CU_GET_PROC_ADDRESS_SUCCESS
                           : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
VMEM_EMU_CATCH

// The function of that name before CUDA 12: cuda.h does not declare it any more, programs still look it up.
extern "C" [[gnu::visibility("default")]] CUresult get_proc_address_v1(const char* symbol, void** function, int version,
                                                                       cuuint64_t flags) asm("cuGetProcAddress");
CUresult get_proc_address_v1(const char* symbol, void** function, int version, cuuint64_t flags) {
  return cuGetProcAddress(symbol, function, version, flags, nullptr);
}
