// The hooks' implementations: one function for each name in hook_table.hpp. Parameters are a Call,
// then those of the driver function.
#pragma once

#include "intercept/hook.hpp"

namespace vmem::intercept {

template <class F>
struct ImplementationOf;
template <class... A>
struct ImplementationOf<CUresult(A...)> {
  using Type = CUresult(Call<CUresult(A...)>, A...);
};

#define VMEM_DECLARE(name, implementation) ImplementationOf<decltype(::name)>::Type implementation;
VMEM_HOOKS(VMEM_DECLARE, VMEM_DECLARE, VMEM_DECLARE)
#undef VMEM_DECLARE

}  // namespace vmem::intercept
