// Every way to look up a driver function returns the hook, for every function in the hooks' list.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "intercept/deepbind_user.hpp"
#include "intercept/hook_table.hpp"
#include "intercept/program.hpp"

#define VMEM_TEXT(name) #name
#define VMEM_SYMBOL(name) VMEM_TEXT(name)

// The symbols as a program links them; null if the driver it was linked with lacks one.
extern "C" {
#define VMEM_LINKED(name, implementation) [[gnu::weak]] void linked_##implementation() asm(VMEM_SYMBOL(name));
#define VMEM_LINKED_VARIANT(name, implementation, suffix) \
  VMEM_LINKED(name, implementation)                       \
  [[gnu::weak]] void linked_##implementation##_variant() asm(VMEM_SYMBOL(name) suffix);
#define VMEM_LINKED_STREAM(name, implementation) VMEM_LINKED_VARIANT(name, implementation, "_ptsz")
#define VMEM_LINKED_NO_STREAM(name, implementation) VMEM_LINKED_VARIANT(name, implementation, "_ptds")
VMEM_HOOKS(VMEM_LINKED, VMEM_LINKED_STREAM, VMEM_LINKED_NO_STREAM)
}

namespace vmem::test {
namespace {

constexpr const char* kHooksLibrary = "libvmem_preload.so";
constexpr const char* kDriverLibrary = "libvmem_emu.so";
// Maximum number of hooked functions that the emulated driver may lack. Only ever lower it.
constexpr int kLackingAtMost = 0;

struct Symbol {
  const char* name;
  void* linked;
};
struct Hooked {
  const char* base_name;  // as passed to cuGetProcAddress
  Symbol legacy;
  Symbol per_thread;  // without a name: there is no such variant
};

// #name is the base name as long as cuda.h's macros have not expanded it.
#define VMEM_BOTH(base_name, symbol, implementation, suffix)    \
  {base_name,                                                   \
   {symbol, reinterpret_cast<void*>(&linked_##implementation)}, \
   {symbol suffix, reinterpret_cast<void*>(&linked_##implementation##_variant)}},
#define VMEM_PLAIN(name, implementation) \
  {#name, {VMEM_SYMBOL(name), reinterpret_cast<void*>(&linked_##implementation)}, {nullptr, nullptr}},
#define VMEM_STREAM(name, implementation) VMEM_BOTH(#name, VMEM_SYMBOL(name), implementation, "_ptsz")
#define VMEM_NO_STREAM(name, implementation) VMEM_BOTH(#name, VMEM_SYMBOL(name), implementation, "_ptds")
const Hooked hooked[] = {VMEM_HOOKS(VMEM_PLAIN, VMEM_STREAM, VMEM_NO_STREAM)};

std::string_view library_of(const void* function) {
  Dl_info info{};
  if (function == nullptr || dladdr(function, &info) == 0) return "";
  const std::string_view path = info.dli_fname;
  return path.substr(path.rfind('/') + 1);
}

// The original dlsym, found with dlvsym, which vmem does not replace.
void* real_symbol(void* library, const char* name) {
  static auto* const real = reinterpret_cast<decltype(&dlsym)>(dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34"));
  REQUIRE(real != nullptr);
  return real(library, name);
}

// Exits with a message if `found` is not the hook.
void require_hook(const void* found, const char* name, const char* way) {
  if (library_of(found) == kHooksLibrary) return;
  std::fprintf(stderr, "%s by %s is not the hook, but in '%s'\n", name, way, std::string(library_of(found)).c_str());
  std::exit(1);
}

using GetV1 = CUresult(const char*, void**, int, cuuint64_t);
using GetV2 = CUresult(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

struct Getters {
  std::vector<GetV1*> old;
  std::vector<GetV2*> current{&cuGetProcAddress};
  std::vector<int> versions;

  explicit Getters(void* library) {
    for (void* from : {library, RTLD_DEFAULT}) {
      old.push_back(reinterpret_cast<GetV1*>(dlsym(from, "cuGetProcAddress")));
      current.push_back(reinterpret_cast<GetV2*>(dlsym(from, "cuGetProcAddress_v2")));
    }
    int of_driver = 0;
    CALL(cuDriverGetVersion(&of_driver));
    for (const int version : {12000, 12040, 13000}) {
      if (version > of_driver) continue;
      versions.push_back(version);
      void* found = nullptr;
      CALL(cuGetProcAddress("cuGetProcAddress", &found, version, CU_GET_PROC_ADDRESS_DEFAULT, nullptr));
      current.push_back(reinterpret_cast<GetV2*>(found));
    }
    for (GetV1* get : old) require_hook(reinterpret_cast<void*>(get), "cuGetProcAddress", "dlsym");
    for (GetV2* get : current) require_hook(reinterpret_cast<void*>(get), "cuGetProcAddress_v2", "its ways");
  }

  // Checks that all look-ups that find a function give the same, and returns it. The latest version
  // has every function.
  void* ask(const char* name, cuuint64_t flags) const {
    std::vector<void*> found;
    for (const int version : versions) {
      // There it is another function.
      if (version >= 13000 && name == std::string_view("cuCtxSynchronize")) continue;
      for (GetV1* get : old) (void)get(name, &found.emplace_back(), version, flags);
      for (GetV2* get : current) {
        CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        (void)get(name, &found.emplace_back(), version, flags, &status);
        REQUIRE((status == CU_GET_PROC_ADDRESS_SUCCESS) == (found.back() != nullptr));
      }
    }
    require_hook(found.back(), name, "cuGetProcAddress");
    std::erase(found, nullptr);
    REQUIRE(std::ranges::all_of(found, [&](void* each) { return each == found[0]; }));
    return found[0];
  }
};

// Returns false if the emulated driver has no such function.
bool every_way_leads_to_the_hook(const Symbol& symbol, void* library) {
  require_hook(dlsym(RTLD_DEFAULT, symbol.name), symbol.name, "RTLD_DEFAULT");
  void* const of_driver = real_symbol(library, symbol.name);
  if (of_driver == nullptr) return false;
  REQUIRE(library_of(of_driver) == kDriverLibrary);
  require_hook(symbol.linked, symbol.name, "its link");
  require_hook(dlsym(library, symbol.name), symbol.name, "dlsym");
  return true;
}

CASE(every_hook_is_found_by_every_way) {
  const Machine machine;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  REQUIRE(library != nullptr);
  const Getters getters(library);
  int lacking = 0;
  for (const Hooked& each : hooked) {
    if (!every_way_leads_to_the_hook(each.legacy, library)) {
      ++lacking;
      continue;
    }
    void* const legacy = getters.ask(each.base_name, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
    REQUIRE(legacy == dlsym(library, each.legacy.name));
    REQUIRE(legacy == getters.ask(each.base_name, CU_GET_PROC_ADDRESS_DEFAULT));
    void* const per_thread = getters.ask(each.base_name, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    if (each.per_thread.name == nullptr) {
      REQUIRE(per_thread == legacy);
      continue;
    }
    // A function with a variant in the driver has one in the emulated driver: see
    // program_functions.hpp.
    if (!every_way_leads_to_the_hook(each.per_thread, library)) {
      std::fprintf(stderr, "the emulated driver has no %s\n", each.per_thread.name);
      std::exit(1);
    }
    REQUIRE(real_symbol(library, each.per_thread.name) != real_symbol(library, each.legacy.name));
    REQUIRE(per_thread == dlsym(library, each.per_thread.name));
    REQUIRE(per_thread != legacy);
    REQUIRE(each.per_thread.linked != each.legacy.linked);
    REQUIRE(dlsym(RTLD_DEFAULT, each.per_thread.name) != dlsym(RTLD_DEFAULT, each.legacy.name));
  }
  std::printf("%d of %zu hooked functions are not in the emulated driver\n", lacking, std::size(hooked));
  REQUIRE(lacking <= kLackingAtMost);
}

// One name stands for functions with other parameters in later versions: each has its own hook.
CASE(a_later_function_of_a_name_has_its_own_hook) {
  const Machine machine;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  REQUIRE(library != nullptr);
  void *plain = nullptr, *named = nullptr;
  CALL(cuGetProcAddress("cuCtxSynchronize", &plain, 12000, CU_GET_PROC_ADDRESS_DEFAULT, nullptr));
  CALL(cuGetProcAddress("cuCtxSynchronize", &named, 13000, CU_GET_PROC_ADDRESS_DEFAULT, nullptr));
  REQUIRE(plain == dlsym(library, "cuCtxSynchronize"));
  REQUIRE(named == dlsym(library, "cuCtxSynchronize_v2"));
  REQUIRE(named != plain);
}

// A library with its own symbol scope bypasses the hooks. It allocates the driver's memory, which
// vmem leaves alone, and can use resident memory of vmem.
CASE(libraries_loaded_with_deepbind_are_not_seen) {
  const Machine machine;
  void* const user = dlopen("libdeepbind_user.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  REQUIRE(user != nullptr);
  const auto& functions = *reinterpret_cast<const DeepbindUser* (*)()>(dlsym(user, "deepbind_user"))();
  for (void* each : {reinterpret_cast<void*>(functions.mem_alloc), reinterpret_cast<void*>(functions.launch_kernel),
                     reinterpret_cast<void*>(functions.get_proc_address), functions.looked_up(), functions.asked_for()})
    REQUIRE(library_of(each) == kDriverLibrary);

  const CUfunction add = machine.function("add");
  std::size_t words = kWords;
  CUdeviceptr unseen = 0;
  CALL(functions.mem_alloc(&unseen, kBytes));
  REQUIRE(!ours(unseen));
  Buffers buffers(10);
  REQUIRE(ours(buffers.at[0]));
  CALL(cuMemsetD32Async(unseen, 5, kWords, buffers.stream));
  const auto launch_unseen = [&](CUdeviceptr target) {
    void* parameters[] = {&target, &words};
    CALL(functions.launch_kernel(add, 1, 1, 1, 1, 1, 1, 0, buffers.stream, parameters, nullptr));
  };
  for (int round = 0; round < 3; ++round) {
    buffers.work(add);
    launch(add, buffers.stream, {&unseen, &words});
    launch_unseen(unseen);
  }
  // The last buffer used is resident, since nothing needs room.
  launch_unseen(buffers.at.back());
  const auto data = read(unseen, kWords, buffers.stream);
  REQUIRE(std::ranges::all_of(data, [](unsigned word) { return word == 5 + 2 * 3; }));
  for (std::size_t i = 0; i < buffers.at.size(); ++i)
    REQUIRE(read(buffers.at[i], 1, buffers.stream)[0] == i + 3 + (i + 1 == buffers.at.size() ? 1 : 0));
  CALL(functions.mem_free(unseen));
}

}  // namespace
}  // namespace vmem::test
