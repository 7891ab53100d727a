#include "gpu/driver.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "base/own_folder.hpp"

namespace vmem::gpu {
namespace {

// Applies cuda.h's macros: cuMemAlloc is looked up as "cuMemAlloc_v2".
#define VMEM_SYMBOL_TEXT(name) #name
#define VMEM_SYMBOL(name) VMEM_SYMBOL_TEXT(name)

SymbolLookup symbol_lookup = nullptr;

void* find_symbol(void* library, const char* name) {
  return symbol_lookup != nullptr ? symbol_lookup(library, name) : dlsym(library, name);
}

struct Library {
  void* handle = nullptr;
  std::string path;
};

// Candidates: beside this code (build tree, libvmem_gpu.so), the lib folder next to its bin
// folder, then the loader's path. A Python package has only the file that `vmem run` uses.
std::vector<std::string> emulated_candidates() {
  constexpr const char* name = "libvmem_emu.so";
  constexpr const char* as_driver = "vmem/emulated/libcuda.so.1";
  const auto folder = own_folder();
  if (folder.empty()) return {name};
  const auto libraries = folder.parent_path() / "lib";
  return {folder / name, libraries / name, folder / as_driver, libraries / as_driver, name};
}

Result<Library> open_library(const std::vector<std::string>& candidates, const char* advice) {
  std::string tried;
  for (const std::string& path : candidates) {
    // Never unloaded: driver threads outlive any owner.
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) return Library{handle, path};
    const char* reason = dlerror();
    tried += fmt::format("{}{}", tried.empty() ? "" : "; ", reason ? reason : path);
  }
  return fail(VMEM_ERROR_NO_DRIVER, fmt::format("no CUDA driver: {}; {}", tried, advice));
}

constexpr const char* kInstalled = "libcuda.so.1";

Result<Library> find_library(const std::string& which) {
  if (which == "auto")
    return open_library(
        {kInstalled},
        "install the NVIDIA driver, or use --driver emulated (VMEM_DRIVER=emulated) to run without a GPU");
  if (which == "emulated") return open_library(emulated_candidates(), "libvmem_emu.so belongs beside libvmem_gpu.so");
  // dlopen of a FIFO would block until a writer opens it.
  std::error_code code;
  if (const auto file = std::filesystem::status(which, code); exists(file) && !is_regular_file(file)) {
    return fail(VMEM_ERROR_NO_DRIVER,
                fmt::format("no CUDA driver: {} is {}; --driver takes auto, emulated or the path of a driver library",
                            which, is_directory(file) ? "a directory" : "no regular file"));
  }
  return open_library({which}, "--driver takes auto, emulated or the path of a driver library");
}

constexpr int kOldest = 13000;
constexpr const char* kNeeded = "vmem needs an NVIDIA driver for CUDA 13.0 or newer (580)";

Result<DriverTable> resolve(const Library& library) {
  DriverTable table;
  std::string missing;
  std::size_t more = 0;
#define VMEM_RESOLVE(name) \
  table.name = reinterpret_cast<decltype(table.name)>(find_symbol(library.handle, VMEM_SYMBOL(name)));
#define VMEM_RESOLVE_REQUIRED(name)            \
  VMEM_RESOLVE(name)                           \
  if (!table.name && !missing.empty()) ++more; \
  if (!table.name && missing.empty()) missing = VMEM_SYMBOL(name);
  VMEM_DRIVER_REQUIRED(VMEM_RESOLVE_REQUIRED)
  VMEM_DRIVER_OPTIONAL(VMEM_RESOLVE)
  VMEM_DRIVER_INTERCEPTION(VMEM_RESOLVE)
#undef VMEM_RESOLVE_REQUIRED
#undef VMEM_RESOLVE
  if (!missing.empty())
    return fail(VMEM_ERROR_NO_DRIVER,
                fmt::format("{} lacks {}{}: {}", library.path, missing,
                            more == 0 ? "" : fmt::format(" and {} more functions", more), kNeeded));
  return table;
}

const char* name_of(const DriverTable& table, CUresult result) {
  const char* name = nullptr;
  return table.cuGetErrorName(result, &name) == CUDA_SUCCESS && name ? name : "an unknown result";
}

const char* words_of(const DriverTable& table, CUresult result) {
  const char* words = nullptr;
  return table.cuGetErrorString(result, &words) == CUDA_SUCCESS && words ? words : "no description";
}

// Results after which the context, or the process's use of the device, is lost.
bool is_fatal(CUresult result) {
  switch (result) {
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
      return true;
    default:
      return is_sticky(result);
  }
}

vmem_status status_of(CUresult result) {
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return VMEM_ERROR_OUT_OF_MEMORY;
  return is_fatal(result) ? VMEM_ERROR_DEVICE_LOST : VMEM_ERROR_DRIVER;
}

}  // namespace

bool is_sticky(CUresult result) {
  switch (result) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
      return true;
    default:
      return false;
  }
}

void use_symbol_lookup(SymbolLookup lookup) { symbol_lookup = lookup; }

Result<std::shared_ptr<const Driver>> Driver::load(const std::string& which) {
  VMEM_ASSIGN(const Library library, find_library(which));
  VMEM_ASSIGN(const DriverTable table, resolve(library));
  if (const CUresult result = table.cuInit(0); result != CUDA_SUCCESS)
    return fail(
        VMEM_ERROR_NO_DRIVER,
        fmt::format("{}: cuInit failed: {} ({})", library.path, name_of(table, result), words_of(table, result)),
        result);
  int version = 0;
  if (table.cuDriverGetVersion(&version) == CUDA_SUCCESS && version < kOldest)
    return fail(VMEM_ERROR_NO_DRIVER,
                fmt::format("{} is for CUDA {}.{}: {}", library.path, version / 1000, version % 1000 / 10, kNeeded));
  const bool emulated = find_symbol(library.handle, "vmem_emu_configure") != nullptr;
  return over(table, emulated, library.path);
}

bool Driver::installed() { return dlopen(kInstalled, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE) != nullptr; }

std::shared_ptr<const Driver> Driver::over(const DriverTable& table, bool emulated, std::string path) {
  auto driver = std::make_shared<Driver>();
  driver->table_ = table;
  driver->path_ = std::move(path);
  driver->emulated_ = emulated;
  // Version 0 (unknown) counts as older than any version checked for.
  if (table.cuDriverGetVersion(&driver->version_) != CUDA_SUCCESS) driver->version_ = 0;
  return driver;
}

Status Driver::check(CUresult result, const char* call) const {
  if (result == CUDA_SUCCESS) return {};
  return fail(status_of(result),
              fmt::format("{} failed: {} ({})", call, name_of(table_, result), words_of(table_, result)), result);
}

}  // namespace vmem::gpu
