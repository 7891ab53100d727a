#include "intercept/torch_error.hpp"

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "vmem/torch.h"

namespace vmem::intercept {
namespace {

// c10::SourceLocation and the constructor of c10::Error, as exported by libc10 since PyTorch 1.5.
// The message is a std::string by value, passed as the address of the caller's object.
struct SourceLocation {
  const char* function;
  const char* file;
  std::uint32_t line;
};
using ConstructError = void(void* self, SourceLocation where, void* message);
using ConstructString = void(void* self, const char* text, const void* allocator);
using DestroyString = void(void* self);
using AllocateException = void*(std::size_t bytes) noexcept;
using ThrowException = void(void* exception, void* type, void (*destroy)(void*));
using CheckFail = void(const char* function, const char* file, std::uint32_t line, const char* message);

// Python loads extensions with RTLD_LOCAL, so the libraries are opened by name.
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

// The constructor of c10::Error, with the process's own functions for its std::string argument,
// since PyTorch frees the string.
struct ErrorConstructor {
  ConstructError* error;
  ConstructString* string;
  DestroyString* destroy_string;

  bool found() const { return error != nullptr && string != nullptr && destroy_string != nullptr; }

  void operator()(void* exception, const char* message) const {
    alignas(std::string) std::byte text[sizeof(std::string)];
    constexpr char allocator = 0;  // std::allocator<char> has no members
    string(text, message, &allocator);
    error(exception, {"vmem_torch_alloc", "vmem", 0}, text);
    destroy_string(text);
  }
};

ErrorConstructor find_error_constructor() {
  const ErrorConstructor now{
      find<ConstructError>("_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"),
      find<ConstructString>("_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEC1EPKcRKS3_"),
      find<DestroyString>("_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEED1Ev")};
  if (now.found()) return now;
  // PyTorch packages up to 2.6 use the std::string ABI from before GCC 5, which is a pointer.
  return {find<ConstructError>("_ZN3c105ErrorC1ENS_14SourceLocationESs"), find<ConstructString>("_ZNSsC1EPKcRKSaIcE"),
          find<DestroyString>("_ZNSsD1Ev")};
}

// More than any c10::Error has needed: tests/torch/out_of_memory_test.py.
constexpr std::size_t kExceptionBytes = 1024;

}  // namespace

void throw_into_torch(const char* message, bool out_of_memory) {
  const ErrorConstructor construct = find_error_constructor();
  void* const type = find<void>("_ZTIN3c1016OutOfMemoryErrorE");
  auto* const vtable = find<void*>("_ZTVN3c1016OutOfMemoryErrorE");
  auto* const allocate = find<AllocateException>("__cxa_allocate_exception");
  auto* const raise = find<ThrowException>("__cxa_throw");
  if (out_of_memory && construct.found() && type != nullptr && vtable != nullptr && allocate != nullptr &&
      raise != nullptr) {
    void* exception = allocate(kExceptionBytes);
    construct(exception, message);
    // OutOfMemoryError adds only its type to Error. A vtable begins with offset-to-top and type
    // info.
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
