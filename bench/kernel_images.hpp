// The compiled GPU kernels inside this program.
#pragma once

#include <span>

namespace vmem::bench {

// One fat binary per .cu file; empty if the build had no nvcc.
std::span<const void* const> kernel_images();

}  // namespace vmem::bench
