// Variants of entry points whose default stream is the calling thread's (_ptsz, _ptds). Each calls
// the function itself while a null stream means the thread's own. program_functions.hpp lists them.
#include <string_view>
#include <unordered_map>
#include <utility>

// Must precede every other include of cuda.h: it makes the functions visible.
#include "gpu/emu/api_entry.hpp"

#include "gpu/emu/program_functions.hpp"

namespace vmem::emu {
namespace {

class NullIsPerThread {
 public:
  NullIsPerThread() : before_(std::exchange(this_thread().null_is_per_thread, true)) {}
  ~NullIsPerThread() { this_thread().null_is_per_thread = before_; }
  NullIsPerThread(const NullIsPerThread&) = delete;
  NullIsPerThread& operator=(const NullIsPerThread&) = delete;

 private:
  const bool before_;
};

template <auto Function>
struct Variant;
template <class... A, CUresult (*Function)(A...)>
struct Variant<Function> {
  static CUresult call(A... arguments) {
    const NullIsPerThread scope;
    return Function(arguments...);
  }
};

}  // namespace

void* per_thread_variant(std::string_view name) {
  // #name is the base name: the macros of cuda.h do not apply to an operand of #.
#define VMEM_VARIANT(name) {#name, reinterpret_cast<void*>(&Variant<&::name>::call)},
  static const auto* table =
      new std::unordered_map<std::string_view, void*>{VMEM_EMU_PER_THREAD_VARIANTS(VMEM_VARIANT, VMEM_VARIANT)};
#undef VMEM_VARIANT
  const auto found = table->find(name);
  return found == table->end() ? nullptr : found->second;
}

// A function's parameters cannot be declared from its type, so the exported symbols are jumps to
// the variants.
#define VMEM_TEXT(name) #name
#define VMEM_SYMBOL(name) VMEM_TEXT(name)
#define VMEM_EXPORT(name, suffix)                                                                                     \
  [[gnu::used, gnu::visibility("hidden")]] void* variant_of_##name asm("vmem_emu_variant_of_" #name) =                \
      reinterpret_cast<void*>(&Variant<&::name>::call);                                                               \
  asm(".text\n.globl " VMEM_SYMBOL(name) suffix "\n.type " VMEM_SYMBOL(name) suffix ", @function\n" VMEM_SYMBOL(name) \
          suffix ":\n  jmp *vmem_emu_variant_of_" #name "(%rip)\n");
#define VMEM_STREAM(name) VMEM_EXPORT(name, "_ptsz")
#define VMEM_NO_STREAM(name) VMEM_EXPORT(name, "_ptds")
extern "C" {
VMEM_EMU_PER_THREAD_VARIANTS(VMEM_STREAM, VMEM_NO_STREAM)
}

}  // namespace vmem::emu
