// Runs a loop compiled twice, once for AVX2: the build targets plain x86-64, and these loops
// determine the emulated driver's speed. Not target_clones: its resolvers run before the sanitizers
// are ready.
#pragma once

#include <utility>

namespace vmem::bench {

#if defined(__x86_64__)

// Body: an always_inline function.
template <auto Body, class... Arguments>
[[gnu::target("avx2,fma")]] auto run_avx2(Arguments... arguments) {
  return Body(arguments...);
}

template <auto Body, class... Arguments>
auto run_wide(Arguments... arguments) {
  static const bool wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return wide ? run_avx2<Body>(arguments...) : Body(arguments...);
}

#else

template <auto Body, class... Arguments>
auto run_wide(Arguments... arguments) {
  return Body(arguments...);
}

#endif

}  // namespace vmem::bench
