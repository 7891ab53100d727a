// demo: the scenario of `make demo`: the stream scenario with explanations for a first-time user.
#include <fmt/format.h>

#include <cstdio>

#include "base/sizes.hpp"
#include "bench/context.hpp"

namespace vmem::bench {
namespace {

constexpr double kRatio = 4;

void explain_before(const Gpu& gpu, const Sizes& sizes) {
  fmt::print(R"(
vmem gives GPU programs more memory than the GPU has. This demonstration takes a region of {} and lets vmem use
only {} of GPU memory for it. The rest lives in pinned host memory. Kernels then work through the whole
region again and again, through one pointer that never changes, while vmem moves the pages under it.

  read-only    each kernel adds up a checksum; pages only come in.
               limit: bare copies from pinned memory, nothing else going on
  read-write   each kernel adds one to every word; changed pages must also go back.
               limit: bare copies in both directions at once

Every byte is checked. 'ratio' is how much of the link's own speed is left for the program.
)",
             format_bytes(sizes.working_set_bytes), format_bytes(sizes.hbm_bytes));
  if (gpu.emulated())
    fmt::print(
        "No NVIDIA driver is used here: an emulated GPU stands in, whose link is slowed down to a few GB/s.\n"
        "The code that runs is the same; the figures say nothing about a real GPU.\n");
  fmt::print("\n");
  std::fflush(stdout);
}

}  // namespace

Status run_demo(Context& context) {
  Settings settings = context.settings;
  settings.mode = "both";
  VMEM_ASSIGN(const Sizes sizes, plan_sizes(settings, context.gpu, kRatio));
  explain_before(context.gpu, sizes);
  Context stream = context.with(settings);
  return run_stream(stream);
}

void print_after_demo(const Gpu& gpu) {
  fmt::print("\nNext: `vmem bench all` measures everything; `vmem doctor` says what this machine can do{}.\n",
             gpu.emulated() ? ", and what it lacks" : "");
}

}  // namespace vmem::bench
