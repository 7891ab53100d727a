#include "gpu/test_kernels.hpp"

#include <dlfcn.h>
#include <sched.h>

#include <atomic>
#include <utility>

#include "gpu/emu/emu.h"

extern "C" const unsigned char vmem_gpu_test_kernels[];
extern "C" const unsigned long vmem_gpu_test_kernels_bytes;

namespace vmem::gpu {
namespace {

void fill_words(std::uint32_t* words, std::uint32_t value, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) words[i] = value;
}

void add_words(std::uint32_t* words, std::uint32_t delta, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) words[i] += delta;
}

void copy_words(std::uint32_t* target, const std::uint32_t* source, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) target[i] = source[i];
}

bool is_set(std::uint32_t* flag) { return std::atomic_ref(*flag).load(std::memory_order_acquire) != 0; }

void wait_for_flag(std::uint32_t* flag) {
  while (!is_set(flag)) sched_yield();
}

void read_until_flag(const volatile std::uint32_t* words, std::uint64_t count, std::uint32_t* started,
                     std::uint32_t* flag, std::uint32_t* sum) {
  std::uint32_t total = 0;
  do {
    total = 0;
    for (std::uint64_t i = 0; i < count; ++i) total += words[i];
    std::atomic_ref(*started).store(1, std::memory_order_release);
    sched_yield();
  } while (!is_set(flag));
  *sum = total;
}

using Register = decltype(&vmem_emu_register_kernel);

template <auto Kernel, class... Parameters>
void register_kernel(Register registration, const char* name, void (*)(Parameters...)) {
  static constexpr std::size_t sizes[] = {sizeof(Parameters)...};
  const auto host_function = [](const vmem_emu_launch* launch) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      Kernel(*static_cast<Parameters*>(launch->params[I])...);
    }(std::index_sequence_for<Parameters...>{});
  };
  registration(name, host_function, sizes, sizeof...(Parameters));
}

Status register_host_kernels(const Driver& driver) {
  void* library = dlopen(driver.path().c_str(), RTLD_NOW | RTLD_NOLOAD);
  const auto registration = library ? reinterpret_cast<Register>(dlsym(library, "vmem_emu_register_kernel")) : nullptr;
  if (!registration) return fail(VMEM_ERROR_NO_DRIVER, driver.path() + " registers no kernels");
#define VMEM_REGISTER(name) register_kernel<&name>(registration, #name, &name)
  VMEM_REGISTER(fill_words);
  VMEM_REGISTER(add_words);
  VMEM_REGISTER(copy_words);
  VMEM_REGISTER(wait_for_flag);
  VMEM_REGISTER(read_until_flag);
#undef VMEM_REGISTER
  return {};
}

}  // namespace

Result<Module> load_test_kernels(DriverRef driver) {
  if (driver->emulated()) {
    VMEM_TRY(register_host_kernels(*driver));
    return Module::load(std::move(driver), "VMEMEMU");  // its final zero is the eighth byte
  }
  if (vmem_gpu_test_kernels_bytes == 0) return fail(VMEM_ERROR_UNSUPPORTED, "the test kernels were built without nvcc");
  return Module::load(std::move(driver), vmem_gpu_test_kernels);
}

}  // namespace vmem::gpu
