#include "bench/kernels/twins.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstddef>
#include <type_traits>
#include <utility>

#include "gpu/emu/emu.h"

namespace vmem::bench {
namespace {

using Register = decltype(&vmem_emu_register_kernel);

// Calls the twin with a launch's untyped parameters.
template <auto Twin, class... Parameters, std::size_t... Index>
void call_twin(const vmem_emu_launch* launch, std::index_sequence<Index...>) {
  Twin(*static_cast<Parameters*>(launch->params[Index])...);
}

template <auto Twin, class... Parameters>
bool register_twin(Register registration, const Kernel<Parameters...>& kernel) {
  static_assert(std::is_same_v<decltype(Twin), typename Kernel<Parameters...>::Function>);
  static constexpr std::size_t kBytes[] = {sizeof(Parameters)...};
  const auto function = [](const vmem_emu_launch* launch) {
    call_twin<Twin, Parameters...>(launch, std::index_sequence_for<Parameters...>{});
  };
  return registration(kernel.name, function, kBytes, sizeof...(Parameters)) == 0;
}

}  // namespace

Status register_twins(const std::string& driver_path) {
  void* library = dlopen(driver_path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  const auto registration = library ? reinterpret_cast<Register>(dlsym(library, "vmem_emu_register_kernel")) : nullptr;
  if (!registration)
    return fail(VMEM_ERROR_NO_DRIVER,
                fmt::format("'{}' is not the emulated driver: it takes no host kernels", driver_path));
  const bool registered = register_twin<&twins::fill>(registration, kernels::fill) &&
                          register_twin<&twins::checksum>(registration, kernels::checksum) &&
                          register_twin<&twins::increment>(registration, kernels::increment) &&
                          register_twin<&twins::verify>(registration, kernels::verify) &&
                          register_twin<&twins::blocks>(registration, kernels::blocks) &&
                          register_twin<&twins::random>(registration, kernels::random) &&
                          register_twin<&twins::histogram>(registration, kernels::histogram) &&
                          register_twin<&twins::matrix_fill>(registration, kernels::matrix_fill) &&
                          register_twin<&twins::matmul>(registration, kernels::matmul);
  if (!registered) return fail(VMEM_ERROR_INTERNAL, "the emulated driver refused a host kernel");
  return {};
}

}  // namespace vmem::bench
