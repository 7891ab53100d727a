// Launches the kernels of kernels/kernels.hpp on a GPU or, as host twins, on the emulated driver.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <type_traits>
#include <vector>

#include "bench/gpu.hpp"
#include "bench/kernels/kernels.hpp"

namespace vmem::bench {

class Launcher {
 public:
  // Errors: UNSUPPORTED (built without GPU kernels, or none for this GPU).
  static Result<Launcher> load(const Gpu& gpu);

  // A grid that fills the GPU: enough thread blocks of kThreads for every multiprocessor.
  unsigned full_grid() const { return gpu_->multiprocessors() * 8; }

  template <class... Parameters>
  Status launch(const Kernel<Parameters...>& kernel, unsigned grid, CUstream stream,
                std::type_identity_t<Parameters>... arguments) const {
    void* pointers[] = {&arguments...};
    return launch_untyped(kernel.name, {grid, 1, 1}, kernels::kThreads, stream, pointers);
  }
  // c = a·b, or c += a·b: all three row-major tiles of `edge` x `edge`.
  Status launch_matmul(CUstream stream, const float* a, const float* b, float* c, std::uint32_t edge,
                       bool accumulate) const;

 private:
  struct Grid {
    unsigned x, y, z;
  };
  explicit Launcher(const Gpu& gpu) : gpu_(&gpu) {}
  Status load_module(const void* image);
  Result<CUfunction> find(const char* name) const;
  Status launch_untyped(const char* name, Grid grid, unsigned threads, CUstream stream, void** arguments) const;

  const Gpu* gpu_;
  std::vector<gpu::Module> modules_;
  // By kernel name, filled on first launch.
  mutable std::map<std::string_view, CUfunction> functions_;
};

}  // namespace vmem::bench
