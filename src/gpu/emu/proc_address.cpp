// cuGetProcAddress: entry points by base name. Each has one version here, the one that cuda.h
// names.
#include <algorithm>
#include <iterator>
#include <string_view>
#include <unordered_map>
#include <utility>

// Must precede every other include of cuda.h: it makes the functions visible.
#include "gpu/emu/api_entry.hpp"

#include "gpu/driver_table.hpp"
#include "gpu/emu/program_functions.hpp"

namespace {

const std::unordered_map<std::string_view, void*>& entry_points() {
  // #name is the base name: the macros of cuda.h do not apply to an operand of #.
#define VMEM_ENTRY(name) {#name, reinterpret_cast<void*>(&::name)},
  static const auto* table = new std::unordered_map<std::string_view, void*>{
      VMEM_DRIVER_REQUIRED(VMEM_ENTRY) VMEM_DRIVER_OPTIONAL(VMEM_ENTRY) VMEM_DRIVER_INTERCEPTION(VMEM_ENTRY)
          VMEM_EMU_PROGRAM_FUNCTIONS(VMEM_ENTRY) VMEM_ENTRY(cuGetProcAddress)};
#undef VMEM_ENTRY
  return *table;
}

// The CUDA version since which a function has its parameters of today.
int first_version(std::string_view symbol) {
  constexpr std::pair<std::string_view, int> after_12_0[] = {
      {"cuFuncGetName", 12030},      {"cuFuncGetParamInfo", 12040},         {"cuGraphAddDependencies", 12030},
      {"cuGraphAddNode", 12030},     {"cuGraphExecNodeSetParams", 12020},   {"cuGraphNodeSetParams", 12020},
      {"cuKernelGetName", 12030},    {"cuKernelGetParamInfo", 12040},       {"cuMemcpy3DBatchAsync", 13000},
      {"cuMemcpyBatchAsync", 13000}, {"cuStreamBeginCaptureToGraph", 12030}};
  const auto* const found = std::ranges::find(after_12_0, symbol, &std::pair<std::string_view, int>::first);
  return found == std::end(after_12_0) ? 12000 : found->second;
}

// From 13.0 on the name stands for the function that takes a context, as by driver 580.
bool names_later_function(std::string_view symbol, int version) {
  return symbol == "cuCtxSynchronize" && version >= 13000;
}

}  // namespace

CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult* status) try {
  constexpr cuuint64_t known_flags = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (!symbol || !function || (flags & ~known_flags)) return CUDA_ERROR_INVALID_VALUE;
  if (version > vmem::emu::machine().config().version) return CUDA_ERROR_INVALID_VALUE;
  const auto found = entry_points().find(symbol);
  const bool known = found != entry_points().end();
  const bool new_enough = version >= first_version(symbol);
  *function = known && new_enough ? found->second : nullptr;
  if (names_later_function(symbol, version)) *function = reinterpret_cast<void*>(&::cuCtxSynchronize_v2);
  if (*function && (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)) {
    if (void* variant = vmem::emu::per_thread_variant(symbol)) *function = variant;
  }
  if (status)
    *status = !known       ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
              : new_enough ? CU_GET_PROC_ADDRESS_SUCCESS
                           : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

// The function of that name before CUDA 12: cuda.h no longer declares it, but programs still look
// it up. Unlike its successor, it fails if it finds nothing.
extern "C" [[gnu::visibility("default")]] CUresult get_proc_address_v1(const char* symbol, void** function, int version,
                                                                       cuuint64_t flags) asm("cuGetProcAddress");
CUresult get_proc_address_v1(const char* symbol, void** function, int version, cuuint64_t flags) {
  void* found = nullptr;
  VMEM_EMU_TRY(cuGetProcAddress(symbol, function ? &found : nullptr, version, flags, nullptr));
  if (!found) return CUDA_ERROR_NOT_FOUND;
  *function = found;
  return CUDA_SUCCESS;
}
