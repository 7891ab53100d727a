#include "intercept/torch_error.hpp"

#include <dlfcn.h>

#include <cstdint>
#include <string>

#include "vmem/torch.h"

namespace vmem::intercept {
namespace {

// c10::SourceLocation and the constructor of c10::Error, as libc10 exports it since PyTorch 1.5.
struct SourceLocation {
  const char* function;
  const char* file;
  std::uint32_t line;
};
using ConstructError = void(void* self, SourceLocation where, std::string message);
using AllocateException = void*(std::size_t bytes) noexcept;
using ThrowException = void(void* exception, void* type, void (*destroy)(void*));
using CheckFail = void(const char* function, const char* file, std::uint32_t line, const char* message);

// Python loads extensions privately, so their libraries are asked by name.
template <class T>
T* find(const char* name) {
  for (const char* library : {"libc10.so", "libc10_cuda.so", "libstdc++.so.6"}) {
    void* loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    if (loaded == nullptr) continue;
    void* found = dlsym(loaded, name);
    dlclose(loaded);
    if (found != nullptr) return reinterpret_cast<T*>(found);
  }
  return nullptr;
}

// More than any c10::Error has needed (about 200 bytes in PyTorch 2.11).
constexpr std::size_t kExceptionBytes = 1024;

}  // namespace

void throw_into_torch(const char* message, bool out_of_memory) {
  auto* const construct =
      find<ConstructError>("_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE");
  void* const type = find<void>("_ZTIN3c1016OutOfMemoryErrorE");
  auto* const vtable = find<void*>("_ZTVN3c1016OutOfMemoryErrorE");
  auto* const allocate = find<AllocateException>("__cxa_allocate_exception");
  auto* const raise = find<ThrowException>("__cxa_throw");
  if (out_of_memory && construct != nullptr && type != nullptr && vtable != nullptr && allocate != nullptr &&
      raise != nullptr) {
    void* exception = allocate(kExceptionBytes);
    construct(exception, {"vmem_torch_alloc", "vmem", 0}, message);
    // OutOfMemoryError adds nothing to Error but its type. A vtable begins with the offset to the top and the type.
    *static_cast<void**>(exception) = vtable + 2;
    raise(exception, type, reinterpret_cast<void (*)(void*)>(vtable[2]));
  }
  if (auto* const fail = find<CheckFail>("_ZN3c106detail14torchCheckFailEPKcS2_jS2_"))
    fail("vmem_torch_alloc", "vmem", 0, message);
}

}  // namespace vmem::intercept

extern "C" void* vmem_torch_alloc(ssize_t bytes, int device, vmem_stream stream) {
  const vmem::intercept::TorchAllocation made = vmem::intercept::allocate_for_torch(bytes, device, stream);
  if (made.problem != nullptr) vmem::intercept::throw_into_torch(made.problem, made.out_of_memory);
  return made.pointer;
}
