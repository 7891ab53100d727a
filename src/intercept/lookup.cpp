// How programs look up driver functions, and how each way leads to the hooks. A direct link finds
// the symbols that this library exports. dlsym and cuGetProcAddress ask the driver first: if the
// answer is the address of a function that has a hook, they return the hook, whatever name and
// version the program asked for. Older functions of a hook's name have no hook.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/log.hpp"
#include "gpu/driver.hpp"
#include "intercept/hook.hpp"
#include "intercept/hook_table.hpp"
#include "intercept/implementations.hpp"
#include "intercept/nccl.hpp"

namespace vmem::intercept {
namespace {

#define VMEM_TEXT(name) #name
#define VMEM_SYMBOL(name) VMEM_TEXT(name)

enum HookIndex : std::size_t {
#define VMEM_PLAIN(name, implementation) k_##implementation,
#define VMEM_STREAM(name, implementation) k_##implementation, k_##implementation##_ptsz,
#define VMEM_NO_STREAM(name, implementation) k_##implementation, k_##implementation##_ptds,
  VMEM_HOOKS(VMEM_PLAIN, VMEM_STREAM, VMEM_NO_STREAM)
#undef VMEM_PLAIN
#undef VMEM_STREAM
#undef VMEM_NO_STREAM
      k_cuGetProcAddress_v1,
  kHooks
};

struct Definition {
  const char* symbol;  // as exported by the driver
  const char* name;    // without the suffix of the default-stream variant
  bool per_thread;
  void* entry;
};

using GetProcAddressV1 = CUresult(const char*, void**, int, cuuint64_t);
CUresult get_proc_address_v1(Call<GetProcAddressV1> call, const char* symbol, void** function, int version,
                             cuuint64_t flags);

#define VMEM_DEFINE(name, implementation, index, suffix, per_thread)  \
  Definition{VMEM_SYMBOL(name) suffix, VMEM_SYMBOL(name), per_thread, \
             reinterpret_cast<void*>(&Entry<&implementation, index, per_thread>::call)},
#define VMEM_PLAIN(name, implementation) VMEM_DEFINE(name, implementation, k_##implementation, "", false)
#define VMEM_STREAM(name, implementation) \
  VMEM_PLAIN(name, implementation)        \
  VMEM_DEFINE(name, implementation, k_##implementation##_ptsz, "_ptsz", true)
#define VMEM_NO_STREAM(name, implementation) \
  VMEM_PLAIN(name, implementation)           \
  VMEM_DEFINE(name, implementation, k_##implementation##_ptds, "_ptds", true)
const std::array<Definition, kHooks> definitions{{VMEM_HOOKS(VMEM_PLAIN, VMEM_STREAM, VMEM_NO_STREAM) Definition{
    "cuGetProcAddress", "cuGetProcAddress", false,
    reinterpret_cast<void*>(&Entry<&get_proc_address_v1, k_cuGetProcAddress_v1, false>::call)}}};
#undef VMEM_PLAIN
#undef VMEM_STREAM
#undef VMEM_NO_STREAM
#undef VMEM_DEFINE

using Dlsym = void*(void*, const char*);

// Sanitizers' runtimes call dlsym before instrumented code can run, be it a library's inline code.
#define VMEM_BEFORE_SANITIZERS [[gnu::no_sanitize("address", "undefined"), gnu::noinline]]

VMEM_BEFORE_SANITIZERS Dlsym* find_real_dlsym() {
  static constexpr const char* kVersions[] = {"GLIBC_2.34", "GLIBC_2.2.5"};
  for (const char* version : kVersions) {
    if (void* found = dlvsym(RTLD_NEXT, "dlsym", version)) return reinterpret_cast<Dlsym*>(found);
  }
  return nullptr;
}

struct Resolved {
  std::array<void*, kHooks> real{};
  std::unordered_map<void*, void*> hook_of;
};
std::atomic<const Resolved*> resolved{nullptr};
std::mutex resolving;

void learn(Resolved& into, void* function, std::size_t index) {
  if (function == nullptr) return;
  const auto [at, fresh] = into.hook_of.try_emplace(function, definitions[index].entry);
  if (!fresh && at->second != definitions[index].entry)
    VMEM_LOG_DEBUG("{} shares its address with another driver function", definitions[index].symbol);
}

// The name for cuGetProcAddress: without a version suffix.
std::string base_name(std::string_view name) {
  const std::size_t version = name.rfind("_v");
  return std::string(name.substr(0, version));
}

// The latest version to request: a driver returns nothing for a version later than its own.
int version_of(void* library, Dlsym* find) {
  auto* const ask = reinterpret_cast<decltype(&::cuDriverGetVersion)>(find(library, "cuDriverGetVersion"));
  int version = 0;
  return ask != nullptr && ask(&version) == CUDA_SUCCESS ? std::min(version, CUDA_VERSION) : CUDA_VERSION;
}

// Null while no driver is loaded.
const Resolved* resolve(bool load);

}  // namespace

extern "C" {
// For the assembly below.
[[gnu::visibility("hidden")]] void* vmem_real_dlsym = nullptr;
[[gnu::visibility("hidden")]] void* vmem_find_symbol(void* library, const char* name);
[[gnu::visibility("hidden")]] void vmem_learn_real_dlsym();
}

namespace {

VMEM_BEFORE_SANITIZERS Dlsym* real_dlsym() {
  auto* known = reinterpret_cast<Dlsym*>(__atomic_load_n(&vmem_real_dlsym, __ATOMIC_ACQUIRE));
  if (known != nullptr) return known;
  known = find_real_dlsym();
  __atomic_store_n(&vmem_real_dlsym, reinterpret_cast<void*>(known), __ATOMIC_RELEASE);
  return known;
}

const Resolved* resolve(bool load) {
  if (const Resolved* known = resolved.load(std::memory_order_acquire)) return known;
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr && load) library = dlopen("libcuda.so.1", RTLD_LAZY);
  if (library == nullptr) {
    (void)dlerror();  // clears the error of our own dlopen
    return nullptr;
  }
  const std::lock_guard lock(resolving);
  if (const Resolved* known = resolved.load(std::memory_order_acquire)) return known;
  auto fresh = std::make_unique<Resolved>();
  Dlsym* const find = real_dlsym();
  using GetProcAddressV2 = decltype(::cuGetProcAddress);
  auto* const ask = reinterpret_cast<GetProcAddressV2*>(find(library, VMEM_SYMBOL(cuGetProcAddress)));
  const int version = version_of(library, find);
  for (std::size_t i = 0; i < kHooks; ++i) {
    fresh->real[i] = find(library, definitions[i].symbol);
    learn(*fresh, fresh->real[i], i);
  }
  for (std::size_t i = 0; i < kHooks; ++i) {
    const Definition& definition = definitions[i];
    void* function = nullptr;
    const cuuint64_t flags =
        definition.per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    // cuGetProcAddress may return another version of the function, with other parameters. An older
    // one, if the driver does not export the symbol: it gets no hook. A later one, such as
    // cuCtxSynchronize with a context (13.0), is exported too: the loop above found its own hook.
    if (ask == nullptr || i == k_cuGetProcAddress_v1 || fresh->real[i] == nullptr) continue;
    if (ask(base_name(definition.name).c_str(), &function, version, flags, nullptr) == CUDA_SUCCESS &&
        function != nullptr)
      fresh->hook_of.try_emplace(function, definition.entry);
  }
  resolved.store(fresh.get(), std::memory_order_release);
  return fresh.release();
}

void* replaced(void* function) {
  const Resolved* known = resolve(false);
  if (known == nullptr) return function;
  const auto found = known->hook_of.find(function);
  return found == known->hook_of.end() ? function : found->second;
}

// The program must not come by the driver's own function where there is a hook.
CUresult replace(CUresult result, void** function) {
  if (result == CUDA_SUCCESS && function != nullptr && *function != nullptr)
    *function = replaced(std::exchange(*function, nullptr));
  return result;
}

CUresult get_proc_address_v1(Call<GetProcAddressV1> call, const char* symbol, void** function, int version,
                             cuuint64_t flags) {
  return replace(call(symbol, function, version, flags), function);
}

}  // namespace

void* find_symbol(void* library, const char* name) { return real_dlsym()(library, name); }

[[gnu::constructor(101)]] void take_over() {
  (void)real_dlsym();
  gpu::use_symbol_lookup(find_symbol);
}

bool preloaded() {
  // The program's own scope does not contain libraries loaded later with RTLD_LOCAL.
  void* program = dlopen(nullptr, RTLD_LAZY);
  void* found = real_dlsym()(program, "vmem_torch_alloc");
  dlclose(program);
  return found != nullptr;
}

CUresult get_proc_address(Call<decltype(::cuGetProcAddress)> call, const char* symbol, void** function, int version,
                          cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  return replace(call(symbol, function, version, flags, status), function);
}

void* real_function(std::size_t hook) {
  const Resolved* known = resolve(true);
  return known == nullptr ? nullptr : known->real[hook];
}

extern "C" {

VMEM_BEFORE_SANITIZERS void vmem_learn_real_dlsym() { (void)real_dlsym(); }

void* vmem_find_symbol(void* library, const char* name) {
  void* found = real_dlsym()(library, name);
  const bool driver_like = found != nullptr && name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z';
  if (found != nullptr && std::strncmp(name, "nccl", 4) == 0) return nccl_hook(name, found);
  if (!driver_like) return found;
  void* hook = nullptr;  // after an exception: as if the function were not there
  (void)refused_if_it_throws([&] {
    hook = replaced(found);
    return CUDA_SUCCESS;
  });
  return hook;
}

// The real dlsym resolves RTLD_NEXT (-1) and RTLD_DEFAULT (0) relative to its caller, so the call
// must reach it as a jump from the caller, even before this library's constructors have run.
// RTLD_DEFAULT finds this library's exports anyway.
asm(R"(
  .text
  .globl dlsym
  .type dlsym, @function
dlsym:
  leaq 1(%rdi), %rax
  cmpq $1, %rax
  ja vmem_find_symbol
  cmpq $0, vmem_real_dlsym(%rip)
  jne 1f
  pushq %rdi
  pushq %rsi
  subq $8, %rsp
  call vmem_learn_real_dlsym
  addq $8, %rsp
  popq %rsi
  popq %rdi
1:
  jmp *vmem_real_dlsym(%rip)
  .size dlsym, .-dlsym
)");

}  // extern "C"

// Exports under the driver's own names, for programs that link the driver.
#define VMEM_ENTRY_EXPORT(name, implementation, suffix, index, per_thread)                                            \
  extern "C" {                                                                                                        \
  [[gnu::used, gnu::visibility("hidden")]] void* export_of_##index asm("vmem_hook_of_" VMEM_SYMBOL(name) suffix) =    \
      reinterpret_cast<void*>(&Entry<&implementation, index, per_thread>::call);                                      \
  }                                                                                                                   \
  asm(".text\n.globl " VMEM_SYMBOL(name) suffix "\n.type " VMEM_SYMBOL(name) suffix ", @function\n" VMEM_SYMBOL(name) \
          suffix ":\n  jmp *vmem_hook_of_" VMEM_SYMBOL(name) suffix "(%rip)\n");
#define VMEM_PLAIN(name, implementation) VMEM_ENTRY_EXPORT(name, implementation, "", k_##implementation, false)
#define VMEM_STREAM(name, implementation) \
  VMEM_PLAIN(name, implementation)        \
  VMEM_ENTRY_EXPORT(name, implementation, "_ptsz", k_##implementation##_ptsz, true)
#define VMEM_NO_STREAM(name, implementation) \
  VMEM_PLAIN(name, implementation)           \
  VMEM_ENTRY_EXPORT(name, implementation, "_ptds", k_##implementation##_ptds, true)
VMEM_HOOKS(VMEM_PLAIN, VMEM_STREAM, VMEM_NO_STREAM)
extern "C" {
[[gnu::used, gnu::visibility("hidden")]] void* export_of_get_proc_address_v1 asm("vmem_hook_of_cuGetProcAddress") =
    reinterpret_cast<void*>(&Entry<&get_proc_address_v1, k_cuGetProcAddress_v1, false>::call);
}
asm(".text\n.globl cuGetProcAddress\n.type cuGetProcAddress, @function\ncuGetProcAddress:\n  jmp "
    "*vmem_hook_of_cuGetProcAddress(%rip)\n");

}  // namespace vmem::intercept
