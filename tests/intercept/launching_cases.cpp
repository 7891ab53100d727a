// Every way to launch a kernel, over memory larger than HBM, and kernels that are unloaded. The
// runs have 64 MiB of HBM.
#include <dlfcn.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "gpu/emu/emu.h"
#include "intercept/program.hpp"

namespace vmem::test {
namespace {

constexpr char kImage[64] = "VMEMEMU";

struct Library {
  CUlibrary handle = nullptr;
  Library() { CALL(cuLibraryLoadData(&handle, kImage, nullptr, nullptr, 0, nullptr, nullptr, 0)); }
  ~Library() { CALL(cuLibraryUnload(handle)); }
  CUkernel kernel(const char* name) const {
    CUkernel found = nullptr;
    CALL(cuLibraryGetKernel(&found, handle, name));
    return found;
  }
};

struct Module {
  CUmodule handle = nullptr;
  Module() { CALL(cuModuleLoadData(&handle, kImage)); }
  ~Module() { CALL(cuModuleUnload(handle)); }
  CUfunction kernel(const char* name) const {
    CUfunction found = nullptr;
    CALL(cuModuleGetFunction(&found, handle, name));
    return found;
  }
};

// The parameters of one launch of `add`, in both forms that launches take.
struct Parameters {
  struct {
    CUdeviceptr target;
    std::size_t words = kWords;
  } values;
  std::size_t bytes = sizeof values;
  void* pointers[2] = {&values.target, &values.words};
  void* extra[5] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &values, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  explicit Parameters(CUdeviceptr target) { values.target = target; }
  Parameters(const Parameters&) = delete;
  Parameters& operator=(const Parameters&) = delete;
};

template <class F>
F* variant(F* legacy, const char* name) {
  auto* const found = reinterpret_cast<F*>(dlsym(RTLD_DEFAULT, name));
  REQUIRE(found != nullptr && found != legacy);
  return found;
}

using Way = std::function<CUresult(CUfunction, CUstream, Parameters&)>;

// cuLaunchKernel and cuLaunchKernelEx with parameters in both forms, and cuLaunchCooperativeKernel.
void add_ways(std::vector<Way>& ways, decltype(&cuLaunchKernel) launch_kernel, decltype(&cuLaunchKernelEx) launch_ex,
              decltype(&cuLaunchCooperativeKernel) launch_cooperative) {
  ways.emplace_back([=](CUfunction function, CUstream stream, Parameters& parameters) {
    return launch_kernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters.pointers, nullptr);
  });
  ways.emplace_back([=](CUfunction function, CUstream stream, Parameters& parameters) {
    return launch_kernel(function, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, parameters.extra);
  });
  ways.emplace_back([=](CUfunction function, CUstream stream, Parameters& parameters) {
    return launch_cooperative(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters.pointers);
  });
  for (const bool in_extra : {false, true}) {
    ways.emplace_back([=](CUfunction function, CUstream stream, Parameters& parameters) {
      CUlaunchAttribute attributes[2]{};
      attributes[0].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
      attributes[1].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
      attributes[1].value.cooperative = in_extra ? 0 : 1;
      const CUlaunchConfig config{1, 1, 1, 1, 1, 1, 0, stream, attributes, 2};
      return launch_ex(&config, function, in_extra ? nullptr : parameters.pointers,
                       in_extra ? parameters.extra : nullptr);
    });
  }
}

CASE(every_way_of_launching) {
  const Machine machine;
  const Library library;
  const CUkernel kernel = library.kernel("add");
  CUfunction of_kernel = nullptr;
  CALL(cuKernelGetFunction(&of_kernel, kernel));
  std::vector<Way> legacy, per_thread;
  add_ways(legacy, &cuLaunchKernel, &cuLaunchKernelEx, &cuLaunchCooperativeKernel);
  add_ways(per_thread, variant(&cuLaunchKernel, "cuLaunchKernel_ptsz"),
           variant(&cuLaunchKernelEx, "cuLaunchKernelEx_ptsz"),
           variant(&cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel_ptsz"));
  Buffers buffers(5);  // one more than fit: each launch evicts what the next but three uses
  // The default streams do not wait for this stream's work.
  CALL(cuStreamSynchronize(buffers.stream));
  unsigned launches = 0;
  for (CUfunction function : {machine.function("add"), reinterpret_cast<CUfunction>(kernel), of_kernel}) {
    const std::pair<const std::vector<Way>*, CUstream> all[] = {
        {&legacy, buffers.stream}, {&per_thread, buffers.stream}, {&per_thread, nullptr}, {&legacy, nullptr}};
    for (const auto& [ways, stream] : all) {
      for (const Way& way : *ways) {
        for (const CUdeviceptr each : buffers.at) {
          Parameters parameters(each);
          CALL(way(function, stream, parameters));
        }
        ++launches;
      }
      // In the per-thread variants, a null stream is the thread's own.
      if (stream == nullptr) {
        CALL(cuStreamSynchronize(ways == &legacy ? CU_STREAM_LEGACY : CU_STREAM_PER_THREAD));
      } else {
        CALL(cuStreamSynchronize(stream));
      }
    }
  }
  for (std::size_t i = 0; i < buffers.at.size(); ++i) {
    const auto data = read(buffers.at[i], kWords, buffers.stream);
    REQUIRE(std::ranges::all_of(data, [&](unsigned word) { return word == i + launches; }));
  }
}

// A launch that the driver refuses is refused under vmem, too.
CASE(launches_that_the_driver_refuses) {
  const Machine machine;
  const Library library;
  const Buffers buffers(1);
  Parameters parameters(buffers.at[0]);
  const CUfunction add = machine.function("add");
  REQUIRE(cuLaunchKernelEx(nullptr, add, parameters.pointers, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CUlaunchConfig config{1, 1, 1, 1, 1, 1, 0, buffers.stream, nullptr, 1};
  REQUIRE(cuLaunchKernelEx(&config, add, parameters.pointers, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CUlaunchAttribute attribute{};
  attribute.id = CUlaunchAttributeID(9999);
  config.attrs = &attribute;
  REQUIRE(cuLaunchKernelEx(&config, add, parameters.pointers, nullptr) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, buffers.stream, parameters.pointers, parameters.extra) ==
          CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuLaunchCooperativeKernel(add, 1 << 20, 1, 1, 1024, 1, 1, 0, buffers.stream, parameters.pointers) ==
          CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  CUkernel kernel = nullptr;
  REQUIRE(cuLibraryGetKernel(&kernel, library.handle, "no_such_kernel") == CUDA_ERROR_NOT_FOUND);
  REQUIRE(read(buffers.at[0], 1, buffers.stream)[0] == 0);
}

// Kernels whose parameters cannot, or can, hold a pointer. With the facts of an unloaded kernel,
// launches of its successor would name no memory.
void nothing(const vmem_emu_launch*) {}

template <class Image, class Handle>
void reload() {
  const Machine machine;
  constexpr std::size_t kSmall[] = {4, 4};
  REQUIRE(vmem_emu_register_kernel("nothing", nothing, kSmall, 2) == 0);
  Buffers buffers(12);
  const CUfunction work = machine.function("add");
  for (unsigned round = 0; round < 4; ++round) {
    Handle old = nullptr;
    {
      const Image image;
      old = image.kernel("nothing");
      unsigned parameter = 0;
      launch(reinterpret_cast<CUfunction>(old), buffers.stream, {&parameter, &parameter});
      CALL(cuStreamSynchronize(buffers.stream));
    }
    const Image image;
    const Handle add = image.kernel("add");
    REQUIRE(add == old);  // same handle as the unloaded kernel
    buffers.work(work);   // evicts the first buffers
    for (CUdeviceptr& each : buffers.at) {
      std::size_t words = kWords;
      launch(reinterpret_cast<CUfunction>(add), buffers.stream, {&each, &words});
    }
    CALL(cuStreamSynchronize(buffers.stream));
  }
  for (std::size_t i = 0; i < buffers.at.size(); ++i) REQUIRE(read(buffers.at[i], 1, buffers.stream)[0] == i + 8);
}

CASE(functions_of_a_reloaded_module) { reload<Module, CUfunction>(); }
CASE(kernels_of_a_reloaded_library) { reload<Library, CUkernel>(); }

}  // namespace
}  // namespace vmem::test
