// Compile-time check of a GPU kernel against its entry in kernels.hpp.
#pragma once

#include <type_traits>

#include "bench/kernels/kernels.hpp"

#define VMEM_BENCH_CHECK_KERNEL(entry, function)                                                      \
  static_assert(std::is_same_v<decltype(&function), decltype(vmem::bench::kernels::entry)::Function>, \
                #function " differs from its entry in kernels.hpp")
